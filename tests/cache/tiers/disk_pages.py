"""Pages whose bytes follow from their key, and disk tiers that write when told to."""

import os
from hashlib import shake_128
from pathlib import Path
from typing import Any

from cache.block_hasher import BlockKey
from cache.tiers.disk import DiskTier
from cache.tiers.disk_folder import OWN_BYTES, bytes_on_disk
from cache.tiers.disk_format import HEADER_BYTES

PAGE_BYTES = 5000
IDENTITY = b"weights, layout, float32"


def key(number: int) -> BlockKey:
    return number.to_bytes(16, "big")


def blob(key: BlockKey, page_bytes: int = PAGE_BYTES) -> bytes:
    return shake_128(key).digest(page_bytes)


def bytes_for(num_pages: int, page_bytes: int = PAGE_BYTES) -> int:
    """The bound that holds so many pages and no more."""
    return OWN_BYTES + num_pages * bytes_on_disk(HEADER_BYTES + page_bytes)


def bytes_taken(folder: Path) -> int:
    """As `du` counts."""
    places = [folder, *folder.rglob("*")]
    return sum(place.lstat().st_blocks * 512 for place in places)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Tier(DiskTier):
    """Writes when `work` is called, and has pages by number."""

    def __init__(self, root: Path, num_pages: int = 100, page_bytes: int = PAGE_BYTES, **settings: Any):
        self.root, self.page_bytes = root, page_bytes
        self.told: list[tuple[list[BlockKey], list[BlockKey]]] = []
        given = {
            "max_bytes": bytes_for(num_pages, page_bytes),
            "identity": IDENTITY,
            "write_bytes_per_second": float("inf"),
            "background": False,
            "on_change": lambda stored, removed: self.told.append((list(stored), list(removed))),
        } | settings
        super().__init__(root, page_bytes=page_bytes, **given)

    def give(self, *numbers: int) -> bool:
        """Offers the page of these blocks."""
        return self.offer([key(number) for number in numbers], blob(key(numbers[-1]), self.page_bytes))

    def put(self, *numbers: int) -> None:
        """Pages of one block each, one after the other onto the disk."""
        for number in numbers:
            assert self.give(number)
            self.work()

    def has(self, number: int) -> bool:
        """Reads it, and what is read is right."""
        target = bytearray(self.page_bytes)
        found = self.read_into(key(number), target)
        assert not found or target == blob(key(number), self.page_bytes)
        return found

    def found(self, upto: int = 40) -> set[int]:
        """Without reading, which would make pages recently used ones."""
        return {number for number in range(upto) if self.find(key(number))}

    def die(self) -> None:
        """Its process is killed: the kernel lets go of the lock, and nothing else is done."""
        assert self._state.folder is not None
        os.close(self._state.folder._lock)

    def file(self, number: int) -> Path:
        folder = self._state.folder
        assert folder is not None
        return folder.page_path(key(number))

    def restarted(self, **settings: Any) -> "Tier":
        """What a process finds that starts after this one has ended."""
        self.close()
        tier = Tier(self.root, **({"page_bytes": self.page_bytes} | settings))
        tier.work()
        return tier


def change_byte(path: Path, at: int) -> None:
    """A disk that keeps a byte wrong, without a trace in the file's times."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

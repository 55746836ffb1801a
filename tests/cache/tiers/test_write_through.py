"""Pages that are used again go to the disk while they still lie elsewhere, and none after a reset."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from cache.block_hasher import BlockKey
from cache.tiers.write_through import WriteThrough
from tests.waiting import wait_until

PAGES = [(bytes([number]) * 16,) for number in range(6)]


class TakingDisk:
    """Takes what is offered, at most `room` before somebody calls it empty."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.taken: list[tuple[BlockKey, bytes]] = []

    def is_busy(self) -> bool:
        return len(self.taken) >= self.room

    def find(self, key: BlockKey) -> bool:
        return any(key == taken for taken, _ in self.taken)

    def offer(self, block_keys: Sequence[BlockKey], blob: memoryview) -> bool:
        assert not self.is_busy()
        self.taken.append((block_keys[-1], bytes(blob)))
        return True

    def keys(self) -> list[BlockKey]:
        return [key for key, _ in self.taken]


class Pool:
    """Gives each page its key as bytes; `gone` ones no more. A read waits for `may_read`."""

    def __init__(self) -> None:
        self.gone: set[BlockKey] = set()
        self.may_read = threading.Event()
        self.may_read.set()
        self.is_reading = threading.Event()

    def read(self, key: BlockKey, target: memoryview) -> bool:
        self.is_reading.set()
        assert self.may_read.wait(60)
        if key == b"fault" * 3 + b".":
            raise RuntimeError("no such memory")
        target[:] = key
        return key not in self.gone


@pytest.fixture
def disk() -> TakingDisk:
    return TakingDisk()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def through(disk: TakingDisk, pool: Pool) -> Iterator[WriteThrough]:
    found = WriteThrough(disk, pool.read, 16)
    yield found
    found.close()


def test_pages_go_in_the_order_in_which_they_were_named_and_once(through: WriteThrough, disk: TakingDisk) -> None:
    through.used(PAGES)
    wait_until(lambda: len(disk.taken) == len(PAGES))
    through.used(reversed(PAGES))
    through.close(60.0)
    assert disk.taken == [(page[-1], page[-1]) for page in PAGES]


def test_a_page_that_is_gone_or_cannot_be_read_is_left_out(through: WriteThrough, disk: TakingDisk, pool: Pool) -> None:
    pool.gone.add(PAGES[1][-1])
    through.used([PAGES[0], PAGES[1], (b"fault" * 3 + b".",), PAGES[2]])
    wait_until(lambda: disk.keys() == [PAGES[0][-1], PAGES[2][-1]])


def test_a_busy_disk_is_waited_for(through: WriteThrough, disk: TakingDisk) -> None:
    disk.room = 2
    through.used(PAGES)
    wait_until(lambda: len(disk.taken) == 2)
    disk.room = 100
    wait_until(lambda: len(disk.taken) == len(PAGES))


def test_nothing_named_or_read_before_a_reset_is_offered_after_it(
    through: WriteThrough, disk: TakingDisk, pool: Pool
) -> None:
    pool.may_read.clear()
    through.used(PAGES[:3])
    assert pool.is_reading.wait(60)
    through.clear()
    pool.may_read.set()
    through.used(PAGES[3:])
    wait_until(lambda: len(disk.taken) == 3)
    assert disk.keys() == [page[-1] for page in PAGES[3:]]


def test_the_end_goes_on_with_what_waits_but_not_for_ever(pool: Pool) -> None:
    quick, busy = TakingDisk(), TakingDisk(room=0)
    for disk, seconds, num_taken in ((quick, 60.0, len(PAGES)), (busy, 0.0, 0)):
        through = WriteThrough(disk, pool.read, 16)
        through.used(PAGES)
        through.close(seconds)
        assert len(disk.taken) == num_taken

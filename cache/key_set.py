"""A set of block keys in ranges of the key space, with a digest of each range."""

from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from cache.block_hasher import BlockKey
from cache.events import COLDER_TIERS, BlocksRemoved, BlocksStored, CacheCleared, KVEvent, Tier

NUM_RANGES = 64
"""By a key's first six bits. Keys are hashes, so that ranges are of about one size."""
ALL_RANGES = range(NUM_RANGES)
DIGEST_BITS = 64
_DIGEST_MASK = (1 << DIGEST_BITS) - 1


def range_of(key: BlockKey) -> int:
    """Loops over many keys write this out: a call would be a third of their time."""
    return key[0] >> 2


def folded(digests: Iterable[int]) -> tuple[int, ...]:
    """XORs of whole keys -> the digests that heartbeats carry, their lowest DIGEST_BITS."""
    return tuple(digest & _DIGEST_MASK for digest in digests)


def range_digests(keys: Iterable[BlockKey]) -> tuple[int, ...]:
    """Of each range, the XOR of its keys' last eight bytes; adding and removing a key are the same operation."""
    digests = [0] * NUM_RANGES
    for key in keys:
        digests[key[0] >> 2] ^= int.from_bytes(key, "big")
    return folded(digests)


class KeySet:
    """What replaying a replica's events gives. Each key costs O(1), its range's digest included.

    ranges: numbers of the ranges that are kept; keys outside them are passed over. changed: ranges that changed since
    the owner of this set last emptied it.
    """

    def __init__(self, ranges: Iterable[int] = ALL_RANGES) -> None:
        self._ranges: dict[int, set[BlockKey]] = {number: set() for number in ranges}
        self._colder: dict[BlockKey, Tier] = {}
        self._digests = [0] * NUM_RANGES
        self.changed: set[int] = set()

    def __len__(self) -> int:
        return sum(map(len, self._ranges.values()))

    def __iter__(self) -> Iterator[BlockKey]:
        for keys in self._ranges.values():
            yield from keys

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._ranges.get(key[0] >> 2, ())

    @property
    def ranges(self) -> Iterable[int]:
        return self._ranges.keys()

    @property
    def digests(self) -> tuple[int, ...]:
        return folded(self._digests)

    def keys_of(self, number: int) -> tuple[BlockKey, ...]:
        return tuple(self._ranges[number])

    def colder_keys(self, ranges: Iterable[int]) -> dict[Tier, list[BlockKey]]:
        """Of these ranges, the keys that do not lie on the device. Digests say nothing of that: a router that has a
        wrong tier is only wrong about time."""
        wanted = frozenset(ranges)
        found: dict[Tier, list[BlockKey]] = {tier: [] for tier in COLDER_TIERS}
        for key, tier in self._colder.items():
            if key[0] >> 2 in wanted:
                found[tier].append(key)
        return found

    def apply(self, event: KVEvent) -> None:
        match event:
            case BlocksStored(keys, tier):
                self._store(keys)
                self._place(keys, tier)
            case BlocksRemoved(keys):
                self._remove(keys)
            case CacheCleared():
                self.changed.update(number for number, held in self._ranges.items() if held)
                for held in self._ranges.values():
                    held.clear()
                self._colder.clear()
                self._digests = [0] * NUM_RANGES
            case _:
                assert_never(event)

    def _store(self, keys: Sequence[BlockKey]) -> None:
        ranges, digests, changed = self._ranges, self._digests, self.changed
        for key in keys:
            number = key[0] >> 2
            held = ranges.get(number)
            if held is not None and key not in held:
                held.add(key)
                digests[number] ^= int.from_bytes(key, "big")
                changed.add(number)

    def _place(self, keys: Sequence[BlockKey], tier: Tier) -> None:
        colder = self._colder
        if tier != "device":
            moved = [key for key in keys if key in self and colder.get(key) != tier]
            colder.update(dict.fromkeys(moved, tier))
        else:
            moved = [key for key in keys if colder.pop(key, None) is not None] if colder else []
        self.changed.update(key[0] >> 2 for key in moved)

    def _remove(self, keys: Sequence[BlockKey]) -> None:
        ranges, digests, changed, colder = self._ranges, self._digests, self.changed, self._colder
        for key in keys:
            number = key[0] >> 2
            held = ranges.get(number)
            if held is not None and key in held:
                held.remove(key)
                colder.pop(key, None)
                digests[number] ^= int.from_bytes(key, "big")
                changed.add(number)

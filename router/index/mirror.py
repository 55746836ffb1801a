"""The router's picture of which replica holds which blocks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cache.block_hasher import BlockKey
from cache.events import COLDER_TIERS, Tier
from cache.key_set import NUM_RANGES, folded
from router.index.predictions import Predictions
from router.index.sweep import Masks, MirrorSweep, clear

SWEEP_KEYS = 256
DROP_KEYS = 64
"""So many of a full mirror's oldest keys go at once: few enough for one hold of the lock."""
ROOM_PART = 20
"""So small a part of a full mirror is worth filling again."""
NUM_TABLES = 256
"""By a key's first byte, so that a range of the key space is some whole tables."""
TABLES_PER_RANGE = NUM_TABLES // NUM_RANGES
_NOTHING: list[Masks] = [{}] * NUM_TABLES


@dataclass(slots=True)
class SlotStats:
    """What one slot holds, in the terms of a heartbeat. num_refused: keys left out, or dropped, because
    the mirror was full.

    sums: for each range of the key space the XOR of the keys held, of which `digests` are the last bits.
    """

    num_keys: int = 0
    num_refused: int = 0
    sums: list[int] = field(default_factory=lambda: [0] * NUM_RANGES)

    @property
    def digests(self) -> tuple[int, ...]:
        return folded(self.sums)


class IndexMirror:
    """Block key -> bitmask of slots. A slot is one incarnation of one replica, or one attempt to load it.

    Four things are tracked: `_holders` (what replicas published, in many tables: no step of a walk over all keys is
    longer than one table), `_colder` (the same for what lies in a colder tier there), `predictions` (what is not
    published yet) and `_live` (slots that count). A dead slot leaves
    `_live` at once; its bits are swept later, in small steps, and only then is its number used again. Bounded by
    `max_blocks` and `max_predicted`. A full mirror drops the keys that were neither stored nor routed by for longest:
    each table is in that order, and the fuller ones give in turn. Not thread-safe.
    """

    def __init__(
        self, *, max_blocks: int = 4_000_000, max_predicted: int = 200_000, predicted_seconds: float = 10.0
    ) -> None:
        """Raises ValueError for a bound below 1 or a life that is not above 0."""
        for name, value in (("max_blocks", max_blocks), ("max_predicted", max_predicted)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not predicted_seconds > 0:
            raise ValueError(f"predicted_seconds must be above 0, got {predicted_seconds}")
        self.predictions = Predictions(max_predicted, predicted_seconds)
        self._max_blocks = max_blocks
        self._holders: list[Masks] = [{} for _ in range(NUM_TABLES)]
        self._colder: dict[Tier, list[Masks]] = {tier: [{} for _ in range(NUM_TABLES)] for tier in COLDER_TIERS}
        self._any_colder = False  # since the start
        self._room = max_blocks  # at least so many keys more
        self._drop_at = 0  # the table whose oldest keys go next
        self._live = 0
        self._dead = 0
        self._free: list[int] = []
        self._num_slots = 0
        self._stats: dict[int, SlotStats] = {}
        self._sweep = MirrorSweep()

    @property
    def num_blocks(self) -> int:
        """Published keys held, those of dead slots that are not yet swept included."""
        return sum(map(len, self._holders))

    @property
    def num_predicted(self) -> int:
        return len(self.predictions)

    def has_room(self, num_keys: int) -> bool:
        """Whether so many keys more fit, or at least a good part of all that fit."""
        return self._max_blocks - self.num_blocks >= max(1, min(num_keys, self._max_blocks // ROOM_PART))

    def stats(self, slot: int) -> SlotStats:
        return self._stats[slot]

    def add_slot(self) -> int:
        """A new, empty slot that does not count yet."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._num_slots
            self._num_slots += 1
        self._stats[slot] = SlotStats()
        return slot

    def enliven(self, slot: int) -> None:
        self._live |= 1 << slot

    def drop(self, slot: int) -> None:
        """O(1): the slot's blocks count no more from here on."""
        self._live &= ~(1 << slot)
        self.predictions.disown(slot)
        if self._stats.pop(slot, None) is not None:
            self._dead |= 1 << slot

    def store(self, slot: int, keys: Iterable[BlockKey], make_room: bool = True) -> None:
        """make_room: where there is none, whether the oldest keys go. What is of unknown age (a snapshot, a repair)
        must not push out what is in use: its keys are left out, and counted as refused."""
        bit, stats, holders = 1 << slot, self._stats[slot], self._holders
        sums, number_of, num_new = stats.sums, int.from_bytes, 0
        room, is_exact = self._room, False
        for key in keys:
            masks = holders[key[0]]
            mask = masks.get(key, 0)
            if mask & bit:
                continue
            if not mask:
                if room <= 0 and not is_exact:
                    room, is_exact = self._max_blocks - self.num_blocks, True
                if room <= 0 and make_room:
                    stats.num_keys += num_new  # of the keys that go some may be new ones
                    num_new = 0
                    room += self._drop_oldest()
                if room <= 0:
                    stats.num_refused += 1
                    continue
                room -= 1
            masks[key] = mask | bit
            num_new += 1
            sums[key[0] >> 2] ^= number_of(key, "big")
        stats.num_keys += num_new
        self._room = room

    def remove(self, slot: int, keys: Iterable[BlockKey]) -> None:
        keys = tuple(keys)
        self.predictions.clear(keys, 1 << slot)
        num_absent = len(keys) - self.withdraw(slot, keys)
        stats = self._stats[slot]
        stats.num_refused = max(0, stats.num_refused - num_absent)

    def withdraw(self, slot: int, keys: Sequence[BlockKey]) -> int:
        """These were never published, or are gone; what is expected there still is. How many were held."""
        bit, stats, holders = 1 << slot, self._stats[slot], self._holders
        num_before = stats.num_keys
        for key in keys:
            if clear(holders[key[0]], key, bit):
                stats.num_keys -= 1
                stats.sums[key[0] >> 2] ^= int.from_bytes(key, "big")
        if self._any_colder:
            self.place(slot, keys, "device")
        return num_before - stats.num_keys

    def place(self, slot: int, keys: Sequence[BlockKey], tier: Tier) -> None:
        """The warmest place of these keys there; of those that it is not known to hold nothing is kept."""
        if tier == "device" and not self._any_colder:
            return
        self._any_colder = True
        bit, holders = 1 << slot, self._holders
        for name, tables in self._colder.items():
            for key in keys:
                masks = tables[key[0]]
                if name != tier:
                    clear(masks, key, bit)
                elif holders[key[0]].get(key, 0) & bit:
                    masks[key] = masks.get(key, 0) | bit

    def colder_blocks(self, keys: Sequence[BlockKey], depths: Mapping[int, int]) -> dict[int, dict[Tier, int]]:
        """Of the leading blocks that `longest_prefix` found, how many lie in colder tiers; slots that have some."""
        found: dict[int, dict[Tier, int]] = {}
        if not self._any_colder or not depths:
            return found
        deepest = max(depths.values())
        for tier, tables in self._colder.items():
            start, mask = 0, 0
            for end, key in enumerate(keys[:deepest]):
                here = tables[key[0]].get(key, 0)
                if here != mask:  # most prompts lie in few stretches
                    _count(found, tier, depths, mask, start, end)
                    start, mask = end, here
            _count(found, tier, depths, mask, start, deepest)
        return found

    def published_keys(self, table: int) -> list[BlockKey]:
        """Of all slots, as they are now, in one table."""
        return list(self._holders[table])

    def predict(self, slot: int, keys: Sequence[BlockKey], now: float) -> list[BlockKey]:
        """The replica of this slot is about to have these blocks. Returns those that nobody knew there."""
        bit, bits, holders = 1 << slot, self.predictions.bits(slot), self._holders
        young, old = self.predictions.generations(now)
        if self._room < self._max_blocks // 2:  # before that nothing will be dropped soon
            self._touch(keys)
        unknown = []
        for key in keys:
            predicted = young.get(key, 0)
            if not (predicted | old.get(key, 0) | holders[key[0]].get(key, 0)) & bit:
                unknown.append(key)
            young[key] = predicted | bits
        self.predictions.written(now)
        return unknown

    def longest_prefix(self, keys: Sequence[BlockKey], now: float, published: bool = True) -> dict[int, int]:
        """Live slots that hold at least the first block -> how many leading blocks each holds or is about to hold.

        published: False looks only at predictions.
        """
        young, old = self.predictions.generations(now)
        return self._walk(keys, young, old, self._holders if published else _NOTHING)[0]

    def longest_prefixes(self, keys: Sequence[BlockKey], now: float) -> tuple[dict[int, int], dict[int, int]]:
        """`longest_prefix`, and the same of what is there by now, what is only expected left out."""
        young, old = self.predictions.generations(now)
        depths, is_expected = self._walk(keys, young, old, self._holders)
        there = self._walk(keys, _NOTHING[0], _NOTHING[0], self._holders)[0] if is_expected else depths
        return depths, there

    def _walk(
        self, keys: Sequence[BlockKey], young: Masks, old: Masks, holders: Sequence[Masks]
    ) -> tuple[dict[int, int], bool]:
        """Depths by slot, and whether any would be less without what is expected."""
        depths: dict[int, int] = {}
        mask, is_expected = self._live, False
        for depth, key in enumerate(keys):
            held = mask & holders[key[0]].get(key, 0)
            if held != mask:  # only then it matters what is expected
                expected = mask & ~held & (young.get(key, 0) | old.get(key, 0))
                if expected:
                    held |= expected
                    is_expected = True
            if held != mask:
                if depth:
                    _note(depths, mask ^ held, depth)
                mask = held
                if not mask:
                    return depths, is_expected
        if keys:
            _note(depths, mask, len(keys))
        return depths, is_expected

    def sweep(self, max_keys: int = SWEEP_KEYS) -> bool:
        """Clears the bits of dead slots from up to `max_keys` entries; when all are done their numbers are free.
        First as many predictions go that are over: to free a large table is work, too. Whether there is more to do."""
        max_keys = self.predictions.free(max_keys)
        if not self._sweep.slots:
            if not self._dead:
                return self.predictions.to_free
            colder = [masks for tables in self._colder.values() for masks in tables] if self._any_colder else []
            self._sweep.begin(self._dead, [*self.predictions.tables(), *colder, *self._holders])
        freed = self._sweep.step(max_keys)
        if freed:
            self._free.extend(slot for slot in range(self._num_slots) if freed >> slot & 1)
            self._dead &= ~freed
        return bool(self._dead) or self.predictions.to_free

    def _touch(self, keys: Iterable[BlockKey]) -> None:
        """These are in use: to the end of their tables' order."""
        holders = self._holders
        for key in keys:
            masks = holders[key[0]]
            if key in masks:
                masks[key] = masks.pop(key)

    def _drop_oldest(self) -> int:
        """Drops the oldest keys of the next table that has any; how many. What is predicted stays so."""
        for _ in range(NUM_TABLES):
            masks = self._holders[self._drop_at]
            self._drop_at = (self._drop_at + 1) % NUM_TABLES
            if len(masks) >= max(1, self._max_blocks // NUM_TABLES):  # not one that is emptier than most
                break
        oldest = list(islice(masks, max(1, min(DROP_KEYS, len(masks) // ROOM_PART))))
        for key in oldest:
            slots, number = masks.pop(key), int.from_bytes(key, "big")
            for tables in self._colder.values() if self._any_colder else ():
                tables[key[0]].pop(key, None)
            while slots:
                lowest = slots & -slots
                slots ^= lowest
                stats = self._stats.get(lowest.bit_length() - 1)
                if stats is not None:  # None: a dead slot that is not yet swept
                    stats.num_keys -= 1
                    stats.num_refused += 1
                    stats.sums[key[0] >> 2] ^= number
        return len(oldest)


def _count(
    found: dict[int, dict[Tier, int]], tier: Tier, depths: Mapping[int, int], slots: int, start: int, end: int
) -> None:
    """Blocks `start` to `end` lie in this tier of these slots."""
    while slots:
        lowest = slots & -slots
        slots ^= lowest
        slot = lowest.bit_length() - 1
        if (num_blocks := min(end, depths.get(slot, 0)) - start) > 0:
            tiers = found.setdefault(slot, {})
            tiers[tier] = tiers.get(tier, 0) + num_blocks


def _note(depths: dict[int, int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest

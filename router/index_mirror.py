"""The router's picture of which replica holds which blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cache.block_hasher import BlockKey
from cache.key_set import NUM_RANGES, folded


@dataclass(slots=True)
class SlotStats:
    """What one slot holds, in the terms of a heartbeat. refused: keys left out because the mirror was full.

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

    Three things are tracked: `_holders` (what replicas published), `_predicted` (what was just sent somewhere and is
    not published yet: C12, 50) and `_live` (slots that count). A dead slot leaves `_live` at once; its bits are swept
    later, in small steps, and only then is its number used again. Predicted keys live in two generations: both are
    read, only the younger is written, and turning them drops the older one; so a prediction lives between half of
    `predicted_seconds` and the whole. Bounded by `max_blocks` and `max_predicted`. Not thread-safe.
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
        self.predicted_seconds = predicted_seconds
        self._max_blocks, self._max_predicted = max_blocks, max_predicted
        self._holders: dict[BlockKey, int] = {}
        self._predicted: list[dict[BlockKey, int]] = [{}, {}]  # younger, older
        self._turn_at = 0.0
        self._live = 0
        self._dead = 0
        self._free: list[int] = []
        self._num_slots = 0
        self._stats: dict[int, SlotStats] = {}
        self._sweep_keys: list[BlockKey] = []
        self._sweep_mask = 0

    @property
    def num_blocks(self) -> int:
        """Published keys held, those of dead slots that are not yet swept included."""
        return len(self._holders)

    @property
    def num_predicted(self) -> int:
        return sum(map(len, self._predicted))

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
        if self._stats.pop(slot, None) is not None:
            self._dead |= 1 << slot

    def replace(self, old: int, new: int) -> None:
        """The new slot takes over what was predicted for the old one, which is dropped."""
        old_bit, new_bit = 1 << old, 1 << new
        for generation in self._predicted:
            for key, mask in generation.items():
                if mask & old_bit:
                    generation[key] = mask | new_bit
        self.enliven(new)
        self.drop(old)

    def store(self, slot: int, keys: Iterable[BlockKey]) -> None:
        bit, stats, holders = 1 << slot, self._stats[slot], self._holders
        sums, number_of, num_new = stats.sums, int.from_bytes, 0
        for key in keys:
            mask = holders.get(key, 0)
            if mask & bit:
                continue
            if not mask and len(holders) >= self._max_blocks:
                stats.num_refused += 1
                continue
            holders[key] = mask | bit
            num_new += 1
            sums[key[0] >> 2] ^= number_of(key, "big")
        stats.num_keys += num_new

    def remove(self, slot: int, keys: Iterable[BlockKey]) -> None:
        keys = tuple(keys)
        bit = 1 << slot
        for generation in self._predicted:
            for key in keys:
                _clear(generation, key, bit)
        self.withdraw(slot, keys)

    def withdraw(self, slot: int, keys: Iterable[BlockKey]) -> None:
        """These were never published, or are gone; what is expected there still is."""
        bit, stats, holders = 1 << slot, self._stats[slot], self._holders
        for key in keys:
            if _clear(holders, key, bit):
                stats.num_keys -= 1
                stats.sums[key[0] >> 2] ^= int.from_bytes(key, "big")

    def published_keys(self) -> list[BlockKey]:
        """Of all slots, as they are now."""
        return list(self._holders)

    def predict(self, slot: int, keys: Iterable[BlockKey], now: float) -> list[BlockKey]:
        """The replica of this slot is about to have these blocks. Returns those that nobody knew there."""
        self._turn_generations(now)
        bit, holders, (young, old) = 1 << slot, self._holders, self._predicted
        unknown = []
        for key in keys:
            predicted = young.get(key, 0)
            if not (predicted | old.get(key, 0) | holders.get(key, 0)) & bit:
                unknown.append(key)
            young[key] = predicted | bit
        if len(young) >= self._max_predicted // 2:
            self._turn_at = now
        return unknown

    def longest_prefix(self, keys: Sequence[BlockKey], now: float, published: bool = True) -> dict[int, int]:
        """Live slots that hold at least the first block -> how many leading blocks each holds.

        published: False looks only at predictions.
        """
        self._turn_generations(now)
        young, old = self._predicted
        holders = self._holders if published else {}
        depths: dict[int, int] = {}
        mask = self._live
        for depth, key in enumerate(keys):
            held = mask & (holders.get(key, 0) | young.get(key, 0) | old.get(key, 0))
            if held != mask:
                if depth:
                    _note(depths, mask ^ held, depth)
                mask = held
                if not mask:
                    return depths
        if keys:
            _note(depths, mask, len(keys))
        return depths

    def sweep(self, max_keys: int = 2000) -> None:
        """Clears the bits of dead slots from up to `max_keys` entries; when all are done their numbers are free."""
        if not self._sweep_mask:
            if not self._dead:
                return
            self._sweep_mask, self._sweep_keys = self._dead, list(self._holders)
            for generation in self._predicted:
                for key in list(generation):
                    _clear(generation, key, self._sweep_mask)
        for _ in range(min(max_keys, len(self._sweep_keys))):
            _clear(self._holders, self._sweep_keys.pop(), self._sweep_mask)
        if not self._sweep_keys:
            self._free.extend(slot for slot in range(self._num_slots) if self._sweep_mask >> slot & 1)
            self._dead &= ~self._sweep_mask
            self._sweep_mask = 0

    def _turn_generations(self, now: float) -> None:
        if now < self._turn_at:
            return
        late = now >= self._turn_at + self.predicted_seconds / 2  # nobody came by for so long: both are over
        self._predicted = [{}, {} if late else self._predicted[0]]
        self._turn_at = now + self.predicted_seconds / 2


def _clear(masks: dict[BlockKey, int], key: BlockKey, bits: int) -> bool:
    """Clears the bits of one entry and drops an empty one. Whether any of them was set."""
    mask = masks.get(key, 0)
    if not mask & bits:
        return False
    mask &= ~bits
    if mask:
        masks[key] = mask
    else:
        del masks[key]
    return True


def _note(depths: dict[int, int], slots: int, depth: int) -> None:
    while slots:
        lowest = slots & -slots
        depths[lowest.bit_length() - 1] = depth
        slots ^= lowest

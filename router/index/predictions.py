"""What was just sent somewhere: blocks that a replica is about to have, and has not published yet (C12, 50)."""

from collections.abc import Iterable

from cache.block_hasher import BlockKey
from router.index.sweep import Masks, clear


class Predictions:
    """Block key -> bitmask of slots, in two generations: both are read, only the younger is written, and turning them
    drops the older one. So a prediction lives between half of `seconds` and the whole. Bounded by `max_keys`.
    """

    def __init__(self, max_keys: int, seconds: float):
        self.seconds = seconds
        self._max_keys = max_keys
        self._generations: tuple[Masks, Masks] = ({}, {})  # younger, older
        self._heirs: dict[int, int] = {}  # slot -> bit of the slot that is about to replace it
        self._dropped: list[Masks] = []
        self._turn_at = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def generations(self, now: float) -> tuple[Masks, Masks]:
        """The younger and the older one, as of now; the caller reads both, and writes into the younger."""
        if now >= self._turn_at:
            late = now >= self._turn_at + self.seconds / 2  # nobody came by for so long: both are over
            younger, older = self._generations
            self._dropped += [younger, older] if late else [older]
            self._generations = ({}, {} if late else younger)
            self._turn_at = now + self.seconds / 2
        return self._generations

    def written(self, now: float) -> None:
        """The younger generation has grown: one that is full is turned at the next look."""
        if len(self._generations[0]) >= self._max_keys // 2:
            self._turn_at = now

    def tables(self) -> tuple[Masks, Masks]:
        return self._generations

    def keys(self, generation: int) -> list[BlockKey]:
        """Of all slots; generation: 0 (the younger) or 1. Asking for 0, then 1, misses none."""
        return list(self._generations[generation])

    def clear(self, keys: Iterable[BlockKey], bit: int) -> None:
        for generation in self._generations:
            for key in keys:
                clear(generation, key, bit)

    def name_heir(self, old: int, new: int) -> None:
        """From here on what is predicted for `old` is also predicted for `new`; the earlier ones it inherits."""
        self._heirs[old] = 1 << new

    def disown(self, old: int) -> None:
        self._heirs.pop(old, None)

    def bits(self, slot: int) -> int:
        """Of the slot and its heir."""
        return 1 << slot | self._heirs.get(slot, 0)

    def inherit(self, old: int, keys: Iterable[BlockKey]) -> None:
        """What was predicted of these for `old` is predicted for its heir too, if it still has one."""
        old_bit, new_bit = 1 << old, self._heirs.get(old, 0)
        for generation in self._generations:
            for key in keys:
                mask = generation.get(key, 0)
                if mask & old_bit:
                    generation[key] = mask | new_bit

    def free(self, max_keys: int) -> int:
        """Frees up to so many entries of generations that are over: to free a large table is work, too. How many of
        `max_keys` are left."""
        while max_keys > 0 and self._dropped:
            for _ in range(min(max_keys, len(self._dropped[-1]))):
                self._dropped[-1].popitem()
                max_keys -= 1
            if not self._dropped[-1]:
                self._dropped.pop()
        return max_keys

    @property
    def to_free(self) -> bool:
        return bool(self._dropped)

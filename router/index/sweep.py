"""Clears dead slots out of the mirror, a little at each call."""

from collections.abc import Sequence

from cache.block_hasher import BlockKey

Masks = dict[BlockKey, int]
KEYS_PER_STEP = 16
"""Copying so many keys costs less than clearing one."""


class MirrorSweep:
    """One sweep takes the slots that were dead when it began out of all tables. The keys of each table are copied for
    themselves, so that no step is longer than one table; what changes in it meanwhile does not matter, for a dead slot
    gets no keys any more.
    """

    def __init__(self) -> None:
        self.slots = 0
        """Bitmask of the slots that this sweep frees; 0 where none is under way."""
        self._tables: list[Masks] = []
        self._masks: Masks = {}
        self._keys: list[BlockKey] = []

    def begin(self, slots: int, tables: Sequence[Masks]) -> None:
        self.slots, self._tables = slots, list(tables)

    def step(self, budget: int) -> int:
        """Clears about so many entries; returns the slots that are free now, as a bitmask, when all is done."""
        while self._keys or self._tables:
            if budget <= 0:
                return 0
            if not self._keys:
                self._masks = self._tables.pop()
                self._keys = list(self._masks)
                budget -= len(self._keys) // KEYS_PER_STEP
                continue
            for _ in range(min(budget, len(self._keys))):
                clear(self._masks, self._keys.pop(), self.slots)
                budget -= 1
        freed, self.slots, self._masks = self.slots, 0, {}
        return freed


def clear(masks: Masks, key: BlockKey, bits: int) -> bool:
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

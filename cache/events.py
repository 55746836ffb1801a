"""What a replica tells the world about its pages, collected between two deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cache.block_hasher import BlockKey

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")
"""Where a page may lie, the warmest first."""
COLDER_TIERS = TIERS[1:]


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """These are held, and `tier` is the warmest place where they lie by now."""

    keys: tuple[BlockKey, ...]
    tier: Tier = "device"


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    pass


KVEvent = BlocksStored | BlocksRemoved | CacheCleared


class EventBuffer:
    """Keeps the order of changes and joins neighbours of one kind into one event."""

    def __init__(self) -> None:
        self._runs: list[tuple[Tier | None, list[BlockKey]]] = []  # None: removed
        self._cleared = False

    def stored(self, keys: Sequence[BlockKey], tier: Tier = "device") -> None:
        self._append(tier, keys)

    def removed(self, keys: Sequence[BlockKey]) -> None:
        self._append(None, keys)

    def cleared(self) -> None:
        self._runs.clear()  # what happened before is void: the receiver forgets everything anyway
        self._cleared = True

    def _append(self, tier: Tier | None, keys: Sequence[BlockKey]) -> None:
        if not keys:
            return
        if self._runs and self._runs[-1][0] == tier:
            self._runs[-1][1].extend(keys)
        else:
            self._runs.append((tier, list(keys)))

    def take(self) -> list[KVEvent]:
        events: list[KVEvent] = [CacheCleared()] if self._cleared else []
        for tier, keys in self._runs:
            events.append(BlocksRemoved(tuple(keys)) if tier is None else BlocksStored(tuple(keys), tier))
        self._runs, self._cleared = [], False
        return events

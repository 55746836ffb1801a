"""What a replica tells the world about its pages, collected between two deliveries."""

from collections.abc import Sequence
from dataclasses import dataclass

from cache.block_hasher import BlockKey


@dataclass(frozen=True, slots=True)
class BlocksStored:
    keys: tuple[BlockKey, ...]


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
        self._runs: list[tuple[type[BlocksStored] | type[BlocksRemoved], list[BlockKey]]] = []
        self._cleared = False

    def stored(self, keys: Sequence[BlockKey]) -> None:
        self._append(BlocksStored, keys)

    def removed(self, keys: Sequence[BlockKey]) -> None:
        self._append(BlocksRemoved, keys)

    def cleared(self) -> None:
        self._runs.clear()  # what happened before is void: the receiver forgets everything anyway
        self._cleared = True

    def _append(self, kind: type[BlocksStored] | type[BlocksRemoved], keys: Sequence[BlockKey]) -> None:
        if not keys:
            return
        if self._runs and self._runs[-1][0] is kind:
            self._runs[-1][1].extend(keys)
        else:
            self._runs.append((kind, list(keys)))

    def take(self) -> list[KVEvent]:
        events: list[KVEvent] = [CacheCleared()] if self._cleared else []
        events += [kind(tuple(keys)) for kind, keys in self._runs]
        self._runs, self._cleared = [], False
        return events

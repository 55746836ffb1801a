"""What a replica tells the world about its pages.

Events are logical: `BlocksStored` comes with the first physical copy of a key and `BlocksRemoved` with the last (A29),
so replaying all events of one replica gives exactly the set of keys that can be hit there.
"""

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

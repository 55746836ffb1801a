"""The other replicas of the same weights, as Redis knows them: for one that begins, and for one that ends."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from cache.block_hasher import BlockKey
from cache.key_set import ALL_RANGES
from cache.wire import records as wire
from cache.wire.redis_keys import TOMBSTONE, RedisKeys
from cache.wire.snapshot import Snapshot, field_names
from replica.messages import PageAddress

logger = logging.getLogger(__name__)
TIMEOUT_SECONDS = 0.5


class Peers:
    """Reads alone. Where Redis is away or holds something else there are no peers, and a warning."""

    def __init__(self, redis_url: str | None, keys: RedisKeys, canary: BlockKey, replica_id: str):
        """canary: of this replica; who has another one has other keys."""
        self._url, self._keys, self._canary, self._replica_id = redis_url, keys, canary, replica_id

    def addresses(self) -> Mapping[str, PageAddress]:
        """Of those that give pages away, by member."""
        return self._asked(self._addresses, {})

    def held(self, members: Iterable[str]) -> set[BlockKey]:
        """What these had published with their last snapshots: up to half a minute old."""
        return self._asked(lambda redis: self._held(redis, members), set())

    def _asked(self, ask: Any, default: Any) -> Any:
        if self._url is None:
            return default
        redis: Any = Redis.from_url(
            self._url,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        try:
            return ask(redis)
        except (RedisError, OSError, ValueError) as error:
            logger.warning("other replicas' pages are not asked for: %s", error)
            return default
        finally:
            redis.close()

    def _addresses(self, redis: Any) -> dict[str, PageAddress]:
        members = sorted(member.decode() for member in redis.smembers(self._keys.members))
        found = {}
        for member, data in zip(
            members, redis.mget(map(self._keys.registration, members)) if members else (), strict=True
        ):
            if data is None or data == TOMBSTONE:
                continue
            registration = wire.decode_registration(data)
            is_peer = registration.canary == self._canary and registration.replica_id != self._replica_id
            if is_peer and registration.pages_at:
                found[member] = PageAddress.from_text(registration.replica_id, registration.pages_at)
        return found

    def _held(self, redis: Any, members: Iterable[str]) -> set[BlockKey]:
        found: set[BlockKey] = set()
        for member in members:
            fields = redis.hmget(self._keys.snapshot(member), field_names(ALL_RANGES))
            if all(fields):
                found.update(Snapshot.from_fields(fields, ALL_RANGES).keys())
        return found

"""`POST /admin/reset_prefix_cache`: empties the caches of all replicas and the index of all routers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.http_app import Handler
from cluster.serving.siblings import Broadcast, ask_replica

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
HELD_BACK_SECONDS = 3 * TIMEOUT_SECONDS
"""Replicas give pages away again by themselves then, where who asked them for the reset has died meanwhile."""


class CacheReset:
    """Requests that run keep their pages. Each replica also tells Redis, so routers that could not be reached learn it
    from there."""

    def __init__(self, replica_handle: Any, running_replicas: Callable[[], Iterable[str]], broadcast: Broadcast):
        self._reset = replica_handle.options(method_name="reset_prefix_cache")
        self._hold_back = replica_handle.options(method_name="hold_pages_back")
        self._running_replicas = running_replicas
        self._broadcast = broadcast

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {("POST", "/admin/reset_prefix_cache"): self.reset}

    async def reset(self, request: Request) -> Response:
        """Answers 200 where every replica did it, else 503 with the ones that did not; calling again is harmless."""
        replica_ids = sorted(self._running_replicas())
        # First, or a replica that has forgotten its pages could take the same ones from one that has not yet.
        held_back = await asyncio.gather(*map(self._hold_back_replica, replica_ids))
        reset = await asyncio.gather(*map(self._reset_replica, replica_ids))
        counts = [count if held else None for count, held in zip(reset, held_back, strict=True)]
        # Last, because replicas may have published blocks up to their reset.
        answers = await self._broadcast("forget_cached", (), TIMEOUT_SECONDS)
        done = {replica_id: count for replica_id, count in zip(replica_ids, counts, strict=True) if count is not None}
        failed = sorted(set(replica_ids) - set(done))
        num_ingresses = sum(not isinstance(answer, BaseException) for answer in answers)
        body = {"num_forgotten_blocks": done, "failed_replicas": failed, "num_ingresses": num_ingresses}
        return JSONResponse(body, 503 if failed or num_ingresses < len(answers) else 200)

    async def _hold_back_replica(self, replica_id: str) -> bool:
        try:
            await ask_replica(self._hold_back, replica_id, HELD_BACK_SECONDS, timeout_seconds=TIMEOUT_SECONDS)
        except Exception as error:
            logger.warning("replica %s may still give pages away: %r", replica_id, error)
            return False
        return True

    async def _reset_replica(self, replica_id: str) -> int | None:
        """How many blocks the replica forgot; None where it could not be reached."""
        try:
            return int(await ask_replica(self._reset, replica_id, timeout_seconds=TIMEOUT_SECONDS))
        except Exception as error:
            logger.warning("could not reset the cache of replica %s: %r", replica_id, error)
            return None

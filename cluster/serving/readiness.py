"""Whether this ingress can serve, proven and not assumed (C38, 55)."""

import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from cluster.serving.siblings import ask_replica

logger = logging.getLogger(__name__)


class NotReady(RuntimeError):
    """The message says what is missing."""


class Readiness:
    """Ready means: the router has its index, at least one replica runs, and one of them has answered lately.

    Requests that were answered are proof enough; without any, a replica is asked who it is, each time another one.
    """

    def __init__(
        self,
        router: Any,
        replica_handle: Any,
        running_replicas: Callable[[], frozenset[str]],
        fresh_seconds: float = 10.0,
        timeout_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """router: PrefixRouter. fresh_seconds: so long an answer is proof. timeout_seconds: of a replica's answer."""
        self._router = router
        self._describe = replica_handle.options(method_name="describe")
        self._running_replicas = running_replicas
        self._fresh_seconds = fresh_seconds
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._answered_at: float | None = None
        self._turn = count()

    def on_answer(self) -> None:
        """A replica has answered."""
        self._answered_at = self._clock()

    async def check(self) -> None:
        """Raises NotReady."""
        replicas = sorted(self._running_replicas())
        if not replicas:
            raise NotReady("no replica is running")
        if not self._router.ready:
            raise NotReady("the routing index is being loaded")
        if self._answered_at is None or self._clock() - self._answered_at >= self._fresh_seconds:
            await self._ask_one(replicas)

    async def _ask_one(self, replicas: list[str]) -> None:
        replica_id = replicas[next(self._turn) % len(replicas)]
        try:
            await ask_replica(self._describe, replica_id, timeout_seconds=self._timeout_seconds)
        except Exception as error:
            logger.warning("replica %s does not answer: %r", replica_id, error)
            raise NotReady(f"replica {replica_id} does not answer") from error
        self.on_answer()

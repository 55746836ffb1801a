"""Where the replicas answer HTTP."""

import asyncio
import logging
from typing import Any

from cluster.serve_call import serve_call

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
RETRY_SECONDS = 1.0


class ReplicaAddresses:
    """Asks each replica that Ray runs, until it answers. Belongs to the ingress's event loop."""

    def __init__(self, replica_handle: Any, retry_seconds: float = RETRY_SECONDS):
        self._ask = replica_handle.options(method_name="http_address")
        self._retry_seconds = retry_seconds
        self._addresses: dict[str, tuple[str, int]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def of(self, replica_id: str) -> tuple[str, int] | None:
        return self._addresses.get(replica_id)

    @property
    def known(self) -> frozenset[str]:
        return frozenset(self._addresses)

    def follow(self, replica_ids: frozenset[str]) -> None:
        """These are the replicas that run now."""
        for gone in self._addresses.keys() - replica_ids:
            del self._addresses[gone]
        for gone in self._asking.keys() - replica_ids:
            self._asking.pop(gone).cancel()
        for new in replica_ids - self._addresses.keys() - self._asking.keys():
            self._asking[new] = asyncio.get_running_loop().create_task(self._learn(new))

    async def _learn(self, replica_id: str) -> None:
        while replica_id not in self._addresses:
            response = None
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    response = serve_call(self._ask, route_to=replica_id)
                    host, port = await response
                self._addresses[replica_id] = host, port
            except Exception as error:
                logger.warning("replica %s does not tell its address: %r", replica_id, error)
                if response is not None:
                    response.cancel()
                await asyncio.sleep(self._retry_seconds)
        self._asking.pop(replica_id, None)

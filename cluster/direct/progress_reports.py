"""Tells the ingresses how far direct requests have come, for their reservations."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from cluster.direct.progress import Progress, Stage

logger = logging.getLogger(__name__)

REPORT_SECONDS = 0.1
"""One report holds what came within so long: a call costs milliseconds, and routers see load by heartbeats too."""


class ProgressReports:
    """Collects stages and sends them together. Belongs to one event loop; idle while nothing happens.

    A report that cannot be sent is dropped: what an ingress has reserved ends with its lease.
    """

    def __init__(self, send: Callable[[Progress], Awaitable[object]], report_seconds: float = REPORT_SECONDS):
        """send: delivers one report to all ingresses."""
        self._send = send
        self._report_seconds = report_seconds
        self._pending: Progress = {}
        self._sender: asyncio.Task[None] | None = None

    def note(self, ticket_id: str, stage: Stage) -> None:
        self._pending[ticket_id] = stage
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_later())

    async def flush(self) -> None:
        """Returns when everything noted so far was sent."""
        while self._sender is not None:
            await asyncio.shield(self._sender)

    async def _send_later(self) -> None:
        try:
            while self._pending:
                await asyncio.sleep(self._report_seconds)
                report, self._pending = self._pending, {}
                await self._send(report)
        except Exception as error:
            logger.warning("the ingresses were not told of direct requests: %r", error)
        finally:
            self._sender = None

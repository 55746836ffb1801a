"""Reads the metrics of every process of the cluster for one `/metrics` page."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from cluster.serving.metrics_merge import JoinedPages, process_of
from cluster.serving.siblings import ask_replica

logger = logging.getLogger(__name__)

SiblingPages = Callable[[float], Awaitable[list[Any]]]
"""Pages of all ingresses, this one among them; takes seconds, may hold exceptions instead of pages."""


class ClusterScrape:
    """This ingress, the other ingresses and every replica, each asked for its own page at once and with a time limit.

    Replicas are asked one by one and not by broadcast: one that hangs must not hide the others. A process that does not
    answer becomes a series of `warmlane_scrape_failed` under the name it had when it last answered.

    The page needs no key, so any number may ask at once: those who come while processes are being asked share the next
    round, which begins after they came.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        process: str,
        replica_handle: Any,
        running_replicas: Callable[[], Iterable[str]],
        sibling_pages: SiblingPages,
        timeout_seconds: float = 3.0,
    ):
        """process: this ingress's incarnation. timeout_seconds: below any scraper's own limit (Prometheus: 10 s)."""
        self._registry = registry
        self._process = process
        self._metrics_text = replica_handle.options(method_name="metrics_text")
        self._running_replicas = running_replicas
        self._sibling_pages = sibling_pages
        self._timeout_seconds = timeout_seconds
        self._process_of_replica: dict[str, str] = {}
        self._siblings: set[str] = set()
        self._running: asyncio.Task[JoinedPages] | None = None
        self._next: asyncio.Task[JoinedPages] | None = None

    def local_page(self) -> str:
        return generate_latest(self._registry).decode()

    async def page(self, accept: str = "") -> tuple[bytes, str]:
        """The joined page and its content type. Never raises because of another process."""
        if self._next is None:
            self._next = asyncio.create_task(self._round(after=self._running))
        return (await asyncio.shield(self._next)).encode(accept)

    async def _round(self, after: "asyncio.Task[JoinedPages] | None") -> JoinedPages:
        if after is not None:
            await asyncio.wait([after])
        self._running, self._next = self._next, None
        return await self._read_all()

    async def _read_all(self) -> JoinedPages:
        replica_ids = sorted(self._running_replicas())
        self._process_of_replica = {id: p for id, p in self._process_of_replica.items() if id in replica_ids}
        replica_pages = asyncio.gather(*map(self._read_replica, replica_ids))
        siblings, failed = await self._read_siblings()
        replicas = await replica_pages
        pages = [self.local_page(), *siblings]
        for replica_id, page in zip(replica_ids, replicas, strict=True):
            if page is None:
                failed.append(self._process_of_replica.get(replica_id, f"replica-{replica_id}"))
            else:
                pages.append(page)
        return JoinedPages(pages, failed)

    async def _read_replica(self, replica_id: str) -> str | None:
        try:
            page: str = await ask_replica(self._metrics_text, replica_id, timeout_seconds=self._timeout_seconds)
            process = process_of(page)
        except Exception as error:
            logger.warning("could not read the metrics of replica %s: %r", replica_id, error)
            return None
        if process is not None:
            self._process_of_replica[replica_id] = process
        return page

    async def _read_siblings(self) -> tuple[list[str], list[str]]:
        """Pages of the other ingresses, and those of them that answered before and do not now."""
        try:
            answers = await self._sibling_pages(self._timeout_seconds)
        except Exception as error:
            logger.warning("could not read the metrics of the other ingresses: %r", error)
            return [], sorted(self._siblings)
        pages = [answer for answer in answers if isinstance(answer, str)]
        processes = {process_of(page) or "" for page in pages} - {self._process, ""}
        # An ingress that is gone gives no answer at all; one that failed gives an exception.
        num_failed = len(answers) - len(pages)
        failed = sorted(self._siblings - processes)[:num_failed]
        self._siblings = processes | set(failed)
        return pages, failed

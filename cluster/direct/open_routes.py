"""What this ingress has sent to replicas directly and not heard the end of."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from cluster.direct.progress import Progress, Stage
from cluster.direct.ticket import TICKET_SECONDS


class Reservations(Protocol):
    """`router.prefix_router.PrefixRouter`. Both are harmless for an id that is unknown."""

    def first_token(self, request_id: str) -> None: ...
    def finish(self, request_id: str) -> None: ...


@dataclass(slots=True)
class _Route:
    """places: what the request takes in the ingress's limits while it runs. until: when it is over for sure."""

    replica_id: str
    places: ExitStack
    until: float


class OpenRoutes:
    """Each route is ended exactly once, with its reservation and its places: by its replica's report, by HAProxy that
    brings the request back, with the replica's death, or by time where nobody says anything.

    Reports go to all ingresses, so ids of others are the usual case.
    """

    def __init__(self, reservations: Reservations, longest_seconds: float, clock: Callable[[], float] = time.monotonic):
        """longest_seconds: that a request may take once a replica has it."""
        self._reservations = reservations
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._routes: dict[str, _Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def open(self, ticket_id: str, replica_id: str, places: ExitStack) -> None:
        """places: closed at the end. The client may leave before the replica has heard of it, so at first the route
        lasts no longer than the ticket."""
        self.tend()
        self._routes[ticket_id] = _Route(replica_id, places, self._clock() + TICKET_SECONDS)

    def progress(self, report: Progress) -> None:
        for ticket_id, stage in report.items():
            route = self._routes.get(ticket_id)
            if route is None:
                continue
            route.until = self._clock() + self._longest_seconds
            if stage == Stage.ENDED:
                self.end(ticket_id)
            elif stage == Stage.FIRST_TOKEN:
                self._reservations.first_token(ticket_id)

    def end(self, ticket_id: str) -> None:
        """Harmless when called again."""
        route = self._routes.pop(ticket_id, None)
        if route is not None:
            route.places.close()
            self._reservations.finish(ticket_id)

    def follow(self, replica_ids: frozenset[str]) -> None:
        """These replicas run now; what the others had has ended."""
        for ticket_id in [id for id, route in self._routes.items() if route.replica_id not in replica_ids]:
            self.end(ticket_id)

    def tend(self) -> None:
        """Ends what must be over by now."""
        now = self._clock()
        for ticket_id in [id for id, route in self._routes.items() if route.until <= now]:
            self.end(ticket_id)

"""Each route ends once, with its reservation and its places, whatever is told or not told of it."""

from contextlib import ExitStack

import pytest

from cluster.direct.open_routes import OpenRoutes
from cluster.direct.progress import Stage
from cluster.direct.ticket import TICKET_SECONDS

LONGEST_SECONDS = 600.0


class Router:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def first_token(self, request_id: str) -> None:
        self.told.append(("first_token", request_id))

    def finish(self, request_id: str) -> None:
        self.told.append(("finish", request_id))


class Routes:
    def __init__(self) -> None:
        self.now = 0.0
        self.router = Router()
        self.num_places = 0
        self.routes = OpenRoutes(self.router, LONGEST_SECONDS, lambda: self.now)

    def open(self, ticket_id: str, replica_id: str = "a") -> None:
        places = ExitStack()
        self.num_places += 1
        places.callback(self._leave)
        self.routes.open(ticket_id, replica_id, places)

    def _leave(self) -> None:
        self.num_places -= 1

    @property
    def finished(self) -> list[str]:
        return [ticket_id for what, ticket_id in self.router.told if what == "finish"]


@pytest.fixture
def routes() -> Routes:
    return Routes()


def test_a_report_moves_and_ends_a_route(routes: Routes) -> None:
    routes.open("one")
    routes.routes.progress({"one": Stage.BEGUN})
    routes.routes.progress({"one": Stage.FIRST_TOKEN, "of another ingress": Stage.FIRST_TOKEN})
    assert routes.router.told == [("first_token", "one")]
    routes.routes.progress({"one": Stage.ENDED, "of another ingress": Stage.ENDED})
    routes.routes.progress({"one": Stage.ENDED})
    routes.routes.end("one")
    assert routes.finished == ["one"]
    assert (routes.num_places, len(routes.routes)) == (0, 0)


def test_what_a_dead_replica_had_ends_with_it(routes: Routes) -> None:
    routes.open("one", "a")
    routes.open("two", "b")
    routes.routes.follow(frozenset({"b", "c"}))
    assert routes.finished == ["one"]
    assert routes.num_places == 1


def test_what_no_replica_ever_had_ends_with_its_ticket(routes: Routes) -> None:
    routes.open("gone")
    routes.open("runs")
    routes.routes.progress({"runs": Stage.BEGUN})
    routes.now = TICKET_SECONDS
    routes.open("new")
    assert routes.finished == ["gone"]
    assert routes.num_places == 2


def test_what_is_never_told_to_have_ended_ends_in_time(routes: Routes) -> None:
    routes.open("one")
    routes.now = 10.0
    routes.routes.progress({"one": Stage.FIRST_TOKEN})
    routes.now = 10.0 + LONGEST_SECONDS - 1
    routes.routes.tend()
    assert routes.finished == []
    routes.now += 1
    routes.routes.tend()
    assert (routes.finished, routes.num_places) == (["one"], 0)

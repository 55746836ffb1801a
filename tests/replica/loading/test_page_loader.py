"""Real threads: what a load brings, how it ends, and that nothing is written once it has."""

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.host import Blob, HostTier
from replica.engine.loads import PageLoad
from replica.loading.page_loader import PageLoader
from tests.waiting import wait_until

PAGE_BYTES = 64
NUM_PAGES = 8


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def blob(number: int) -> Blob:
    return np.full(PAGE_BYTES, number, np.uint8)


class Pool:
    """Pages of memory; `hold` makes the next write wait."""

    def __init__(self) -> None:
        self.pages = np.zeros((NUM_PAGES, PAGE_BYTES), np.uint8)
        self.gate: threading.Event | None = None
        self.writing = threading.Event()

    def write(self, page_id: int, blob: Blob) -> None:
        self.writing.set()
        if self.gate is not None:
            self.gate.wait()
        self.pages[page_id] = blob


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def tiers(pool: Pool) -> ColderTiers:
    """Pages 1 to 5 lie in the host tier."""
    found = ColderTiers(HostTier(16 * PAGE_BYTES, PAGE_BYTES), None, PAGE_BYTES, blob)
    for number in range(1, 6):
        found.offer(number, [key(number)])
    return found


@pytest.fixture
def make(pool: Pool) -> Iterator[Callable[..., PageLoader]]:
    made: list[PageLoader] = []

    def loader(tiers: object) -> PageLoader:
        made.append(PageLoader(pool, tiers))  # type: ignore[arg-type]
        return made[-1]

    yield loader
    for each in made:
        each.close()


def ended(loader: PageLoader, request_id: str = "a") -> None:
    wait_until(lambda: loader.has_ended(request_id), "the load has ended")


def test_pages_come_in_order_to_where_they_belong(
    make: Callable[..., PageLoader], pool: Pool, tiers: ColderTiers
) -> None:
    loader, told = make(tiers), threading.Event()
    loader.on_end = told.set
    loader.start(PageLoad("a", [key(1), key(2), key(3)], [6, 0, 4]))
    ended(loader)
    wait_until(told.is_set, "the engine was woken")
    loaded = loader.end("a")
    assert (loaded.num_pages, loaded.failure) == ({"host": 3}, None)
    assert [pool.pages[page, 0] for page in (6, 0, 4)] == [1, 2, 3]
    assert loader.end("a").num_pages == {}  # twice is harmless


def test_behind_a_page_that_is_gone_nothing_is_loaded(
    make: Callable[..., PageLoader], pool: Pool, tiers: ColderTiers
) -> None:
    loader = make(tiers)
    loader.start(PageLoad("a", [key(1), key(9), key(3)], [0, 1, 2]))
    ended(loader)
    loaded = loader.end("a")
    assert (loaded.num_pages, loaded.failure) == ({"host": 1}, "gone")
    assert not pool.pages[1:].any()


def test_once_a_load_is_given_up_nothing_is_written(
    make: Callable[..., PageLoader], pool: Pool, tiers: ColderTiers
) -> None:
    """The page that is being written just then is waited for, and counts for nothing (its reader has not said so)."""
    loader, pool.gate = make(tiers), threading.Event()
    loader.start(PageLoad("a", [key(1), key(2), key(3)], [0, 1, 2]))
    wait_until(pool.writing.is_set, "the first page is being written")
    load, gate = loader._loads["a"], pool.gate

    def write_on() -> None:
        wait_until(lambda: load.stopped, "the load is given up")
        gate.set()

    writer = threading.Thread(target=write_on)
    writer.start()
    loaded = loader.end("a")
    writer.join()
    assert (loaded.num_pages, loaded.failure) == ({}, "late")
    pool.pages[:] = 0
    loader.close()  # waits for the thread
    assert not pool.pages.any()


def test_a_tier_that_raises_costs_a_load(make: Callable[..., PageLoader], pool: Pool, caplog: object) -> None:
    class Broken:
        def read(self, key: bytes, take: object) -> str | None:
            raise OSError("no such luck")

    loader = make(Broken())
    loader.start(PageLoad("a", [key(1)], [0]))
    ended(loader)
    assert loader.end("a").failure == "fault"


def test_several_loads_at_once_end_each_for_itself(
    make: Callable[..., PageLoader], pool: Pool, tiers: ColderTiers
) -> None:
    loader = make(tiers)
    for number in range(1, 6):
        loader.start(PageLoad(str(number), [key(number)], [number]))
    for number in range(1, 6):
        ended(loader, str(number))
        assert loader.end(str(number)).num_pages == {"host": 1}
    assert pool.pages[1:6, 0].tolist() == [1, 2, 3, 4, 5]

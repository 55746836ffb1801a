"""Pages of one replica arrive at another one as they were, by every way."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from replica.messages import PageAddress
from replica.transfer import page_protocol, page_slots
from replica.transfer.connections import PageServerBounds
from replica.transfer.transfer import PullEnd
from tests.replica.transfer.pages import (
    IDENTITY,
    PAGE_BYTES,
    Source,
    Taker,
    keys_of,
    over_local_socket,
    over_tcp,
    pull,
    pulling,
    serving,
)
from tests.waiting import wait_until

Way = Callable[[PageAddress], PageAddress]
BOTH_WAYS = pytest.mark.parametrize("way", [over_tcp, over_local_socket], ids=["tcp", "shared memory"])
SLOTS = PageServerBounds().num_slots


@BOTH_WAYS
@pytest.mark.parametrize("num_pages", [0, 1, SLOTS - 1, SLOTS, SLOTS + 1, 2 * SLOTS, 63])
def test_all_pages_come_in_order(way: Way, num_pages: int) -> None:
    with serving() as server, pulling() as puller:
        result = pull(puller, way(server.address), keys_of(num_pages))
        assert result.end is PullEnd.COMPLETE, result
        wait_until(lambda: server.counts().num_pages == num_pages)
        assert server.counts().num_bytes == num_pages * PAGE_BYTES


@BOTH_WAYS
def test_one_connection_serves_many_pulls(way: Way) -> None:
    with serving() as server, pulling() as puller:
        for number in range(5):
            assert pull(puller, way(server.address), keys_of(7, number)).end is PullEnd.COMPLETE
        assert server.counts().num_connections == 1


@BOTH_WAYS
def test_a_page_that_is_missing_ends_the_pull_and_not_the_connection(way: Way) -> None:
    keys = keys_of(9)
    source = Source(missing=[keys[6]])
    with serving(source) as server, pulling() as puller:
        result = pull(puller, way(server.address), keys)
        assert (result.num_pages, result.end) == (6, PullEnd.MISSING)
        source.missing = {keys[0]}
        assert pull(puller, way(server.address), keys).end is PullEnd.MISSING
        source.missing = set()
        assert pull(puller, way(server.address), keys).end is PullEnd.COMPLETE
        wait_until(lambda: server.counts().num_pulls == 3)
        assert server.counts().failures == {PullEnd.MISSING: 2}
        assert server.counts().num_connections == 1


@BOTH_WAYS
def test_nothing_comes_after_a_page_that_was_declined(way: Way) -> None:
    keys = keys_of(30)
    with serving() as server, pulling() as puller:
        result = pull(puller, way(server.address), keys, Taker(keys, decline=5))
        assert (result.num_pages, result.end) == (5, PullEnd.DECLINED)
        assert pull(puller, way(server.address), keys).end is PullEnd.COMPLETE


@BOTH_WAYS
def test_a_pull_is_cancelled_between_pages_and_while_it_waits(way: Way) -> None:
    keys, waiting, release = keys_of(3), threading.Event(), threading.Event()
    source = Source()
    with serving(source) as server, pulling() as puller:
        taker = Taker(keys)
        result = pull(puller, way(server.address), keys, taker, cancelled=lambda: len(taker.positions) == 2)
        assert (result.num_pages, result.end) == (2, PullEnd.CANCELLED)

        def hang(_: bytes) -> None:
            waiting.set()
            release.wait()

        source.before_read = hang
        result = pull(puller, way(server.address), keys, cancelled=waiting.is_set)
        assert (result.num_pages, result.end) == (0, PullEnd.CANCELLED)
        release.set()


def test_a_puller_that_closes_ends_its_pulls() -> None:
    waiting, release = threading.Event(), threading.Event()
    source = Source()
    source.before_read = lambda key: (waiting.set(), release.wait())
    with serving(source) as server, pulling() as puller, ThreadPoolExecutor() as pool:
        running = pool.submit(pull, puller, server.address, keys_of(3))
        waiting.wait()
        puller.close()
        assert running.result().end is PullEnd.CANCELLED
        assert pull(puller, server.address, keys_of(3)).end is PullEnd.CANCELLED
        release.set()


@BOTH_WAYS
def test_what_on_page_raises_is_raised_and_the_connection_goes(way: Way) -> None:
    def broken(position: int, blob: memoryview) -> bool:
        raise ZeroDivisionError

    with serving() as server, pulling() as puller:
        with pytest.raises(ZeroDivisionError):
            puller.pull(way(server.address), keys_of(9), broken, float("inf"))
        wait_until(lambda: server.counts().num_connections == 0)


@BOTH_WAYS
def test_several_pulls_at_once_have_a_connection_each(way: Way) -> None:
    meeting = threading.Barrier(6)
    with serving() as server, pulling() as puller, ThreadPoolExecutor(6) as pool:

        def one(first: int) -> PullEnd:
            meeting.wait()
            return pull(puller, way(server.address), keys_of(40, first * 100)).end

        for _ in range(5):
            assert set(pool.map(one, range(6))) == {PullEnd.COMPLETE}
        wait_until(lambda: server.counts().num_pages == 5 * 6 * 40)


@BOTH_WAYS
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_a_chain_longer_than_one_ask_is_asked_for_in_parts(
    way: Way, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(2 * page_protocol.MAX_PAGES_PER_ASK + beyond)
    with serving(Source(page_bytes=64)) as server, pulling(page_bytes=64) as puller:
        result = pull(puller, way(server.address), keys, Taker(keys, page_bytes=64))
        assert result.end is PullEnd.COMPLETE, result
        wait_until(lambda: server.counts().num_pulls == 2 + (beyond > 0))


def test_whoever_is_on_another_node_comes_by_tcp() -> None:
    """The name of the local socket says nothing there: nobody listens on it."""
    with serving() as server, pulling() as puller:
        elsewhere = PageAddress("a", server.address.host, server.address.port, "warmlane-pages-of-another-node")
        assert pull(puller, elsewhere, keys_of(5)).end is PullEnd.COMPLETE


def test_without_shared_memory_bytes_go_over_the_local_socket(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(page_slots.os, "memfd_create")
    with serving() as server, pulling() as puller:
        assert pull(puller, over_local_socket(server.address), keys_of(9)).end is PullEnd.COMPLETE
    assert "without shared memory" in caplog.text


@BOTH_WAYS
def test_pages_of_another_model_are_not_given_away(way: Way) -> None:
    with serving(Source(identity=b"another")) as server, pulling() as puller:
        result = pull(puller, way(server.address), keys_of(3))
        assert (result.num_pages, result.end) == (0, PullEnd.OTHER_IDENTITY)
        wait_until(lambda: server.counts().failures == {PullEnd.OTHER_IDENTITY: 1})


@BOTH_WAYS
def test_pages_of_another_length_are_not_taken(way: Way) -> None:
    with serving(Source(page_bytes=PAGE_BYTES * 2)) as server, pulling() as puller:
        assert pull(puller, way(server.address), keys_of(3)).end is PullEnd.OTHER_IDENTITY


def test_a_page_that_cannot_be_read_is_a_missing_one(caplog: pytest.LogCaptureFixture) -> None:
    source = Source()
    source.before_read = lambda key: 1 / 0
    with serving(source) as server, pulling() as puller:
        assert pull(puller, server.address, keys_of(3)).end is PullEnd.MISSING
    assert "could not be read" in caplog.text


def test_a_puller_needs_pages_of_some_length() -> None:
    with pytest.raises(ValueError, match="page_bytes must be above 0, got 0"), pulling(IDENTITY, page_bytes=0):
        pass

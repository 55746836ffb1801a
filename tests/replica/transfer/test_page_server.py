"""Who gets pages, how many get them at once, and that nothing stays of those who leave."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from replica.channel.frames import framed, packed
from replica.channel.handshake import PAGE_TRANSFER, ConnectingHandshake
from replica.messages import PageAddress
from replica.transfer.connections import PageServerBounds
from replica.transfer.page_protocol import MAX_PAGES_PER_ASK, Ask, greeting_of
from replica.transfer.page_server import PageServer
from replica.transfer.timed_socket import TimedSocket
from replica.transfer.transfer import PullEnd
from tests.replica.transfer.pages import (
    IDENTITY,
    SECRET,
    Source,
    keys_of,
    over_local_socket,
    over_tcp,
    pull,
    pulling,
    serving,
)
from tests.replica.transfer.raw_peers import prove, raw_puller, until_closed
from tests.waiting import wait_until

BOTH_WAYS = pytest.mark.parametrize("way", [over_tcp, over_local_socket], ids=["tcp", "shared memory"])
ASK = packed(Ask(IDENTITY, keys_of(3)))


def proven(server: PageServer) -> TimedSocket:
    """A raw peer over TCP that may ask."""
    sock = raw_puller(over_tcp(server.address))
    prove(sock)
    greeting_of(sock.read_frame(128))
    return sock


class Held(Source):
    """Reads nothing before `release` is set."""

    def __init__(self) -> None:
        super().__init__(page_bytes=2**20)
        self.release = threading.Event()
        self.before_read = lambda key: self.release.wait()


@BOTH_WAYS
@pytest.mark.parametrize("wrong", ["puller", "holder"])
def test_another_secret_gets_nothing(way: object, wrong: str) -> None:
    source, other = Source(), b"another secret!!"
    with (
        serving(source, secret=other if wrong == "holder" else SECRET) as server,
        pulling(secret=other if wrong == "puller" else SECRET) as puller,
    ):
        result = pull(puller, way(server.address), keys_of(3))  # type: ignore[operator]
        assert (result.num_pages, result.end, source.num_reads) == (0, PullEnd.UNPROVEN, 0)
        wait_until(lambda: server.counts().failures == {PullEnd.UNPROVEN: 1})


def test_another_replica_at_the_same_address_is_not_asked() -> None:
    """A port may have a new owner."""
    with serving() as server, pulling() as puller:
        meant = PageAddress("b", server.address.host, server.address.port, server.address.local)
        assert pull(puller, meant, keys_of(3)).end is PullEnd.UNPROVEN


@BOTH_WAYS
@pytest.mark.parametrize(
    "said",
    [ASK, framed(b""), b"GET / HTTP/1.1\r\n\r\n", framed(bytes(80)), framed(bytes(80)) + ASK],
    ids=["ask", "empty", "http", "no proof", "no proof and ask"],
)
def test_nothing_is_read_before_the_proof(way: object, said: bytes) -> None:
    source = Source()
    with serving(source) as server:
        sock = raw_puller(way(server.address))  # type: ignore[operator]
        sock.read_frame(128)
        sock.write(said)
        until_closed(sock)
        assert (source.num_reads, server.counts().num_pulls) == (0, 0)


def test_a_handshake_that_was_overheard_is_worth_nothing() -> None:
    source = Source()
    with serving(source) as server:
        first, second = raw_puller(server.address), raw_puller(server.address)
        overheard = framed(ConnectingHandshake(SECRET, "a", PAGE_TRANSFER).answer(first.read_frame(128)))
        second.read_frame(128)
        second.write(overheard, ASK)
        with pytest.raises(ConnectionError):
            second.read_some(1)
        first.write(overheard)
        assert len(first.read_frame(128)) == 32
        assert source.num_reads == 0


def test_those_who_only_connect_keep_nobody_out() -> None:
    with serving(bounds=PageServerBounds(max_unproven=3, handshake_seconds=600)) as server, pulling() as puller:
        idle = [raw_puller(server.address) for _ in range(8)]
        for sock in idle[:5]:
            until_closed(sock)
        assert pull(puller, server.address, keys_of(3)).end is PullEnd.COMPLETE


def test_a_connection_must_prove_itself_in_time() -> None:
    with serving(bounds=PageServerBounds(handshake_seconds=0.01)) as server:
        until_closed(raw_puller(server.address))
        wait_until(lambda: server.counts().num_connections == 0)
        assert server.counts().failures == {PullEnd.UNPROVEN: 1}


def test_no_more_connections_than_the_bound_and_idle_ones_make_room() -> None:
    source = Held()
    with (
        serving(source, PageServerBounds(max_connections=2)) as server,
        pulling(page_bytes=source.page_bytes) as one,
        pulling(page_bytes=source.page_bytes) as other,
    ):
        busy = [proven(server), proven(server)]
        for sock in busy:
            sock.write(ASK)
        wait_until(lambda: source.num_reads == 2)
        assert pull(one, server.address, keys_of(3)).end is PullEnd.BUSY
        for sock in busy:
            sock.close()
        source.release.set()
        wait_until(lambda: server.counts().num_connections == 0)
        for puller in (one, other, one, other):
            keys = keys_of(1)
            assert puller.pull(server.address, keys, lambda position, blob: True, float("inf")).num_pages == 1
        idle = proven(server)
        assert server.counts().num_connections <= 2
        idle.close()


def test_who_reads_slowly_holds_nobody_up_and_is_given_up() -> None:
    source = Source(page_bytes=8 * 2**20)
    with (
        serving(source, PageServerBounds(stalled_seconds=3.0)) as server,
        pulling(page_bytes=source.page_bytes) as puller,
    ):
        slow = proven(server)
        slow.write(ASK)
        wait_until(lambda: source.num_reads > 0)
        for _ in range(3):
            assert puller.pull(server.address, keys_of(2), lambda p, b: True, float("inf")).num_pages == 2
        wait_until(lambda: server.counts().failures["stalled"] == 1)


def test_slots_that_are_not_given_back_end_the_pull() -> None:
    with serving(bounds=PageServerBounds(stalled_seconds=0.01, num_slots=2)) as server:
        sock = raw_puller(over_local_socket(server.address))
        prove(sock)
        sock.write(ASK)
        until_closed(sock)
        wait_until(lambda: server.counts().failures == {"stalled": 1})
        assert server.counts().num_pages == 2


@pytest.mark.parametrize(
    "said",
    [
        packed(Ask(IDENTITY, keys_of(MAX_PAGES_PER_ASK + 1))),
        packed(Ask(IDENTITY, [b"short"])),
        packed(Ask(b"x" * 65, keys_of(1))),
        b"\xff\xff\xff\xff",
        framed(b"\x00"),
    ],
    ids=["too many", "no key", "long identity", "endless", "garbage"],
)
def test_an_ask_out_of_bounds_ends_the_connection(said: bytes) -> None:
    source = Source()
    with serving(source) as server:
        sock = proven(server)
        sock.write(said)
        until_closed(sock)
        wait_until(lambda: server.counts().failures == {PullEnd.MALFORMED: 1})
        assert source.num_reads == 0


@BOTH_WAYS
def test_a_connection_that_was_closed_while_idle_is_opened_anew(way: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that shows only when something is asked."""
    with serving(bounds=PageServerBounds(idle_seconds=0.01)) as server, pulling() as puller:
        for _ in range(2):
            for _ in range(3):
                assert pull(puller, way(server.address), keys_of(3)).end is PullEnd.COMPLETE  # type: ignore[operator]
                wait_until(lambda: server.counts().num_connections == 0)
            monkeypatch.setattr("replica.transfer.pull_connection.PullConnection.is_dead", False)


def test_no_more_connections_are_kept_than_the_bound() -> None:
    with serving() as one, serving() as other, pulling(max_kept=1) as puller:
        for server in (one, other, one):
            assert pull(puller, server.address, keys_of(3)).end is PullEnd.COMPLETE
        wait_until(lambda: one.counts().num_connections == 1 and other.counts().num_connections == 0)
    with serving() as server, pulling(max_kept=0) as puller:
        assert pull(puller, server.address, keys_of(3)).end is PullEnd.COMPLETE
        wait_until(lambda: server.counts().num_connections == 0)


@BOTH_WAYS
def test_a_server_that_closes_breaks_off_what_it_serves(way: object) -> None:
    """Here a pull that waits for its turn, because of the bytes per second."""
    source = Source()
    with (
        serving(source, PageServerBounds(bytes_per_second=1.0)) as server,
        pulling() as puller,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(pull, puller, way(server.address), keys_of(3))  # type: ignore[operator]
        wait_until(lambda: source.num_reads == 2)
        server.close()
        assert (running.result().num_pages, running.result().end) == (1, PullEnd.LOST)
        server.close()
        assert server.counts().num_connections == 0
        assert pull(puller, way(server.address), keys_of(3)).end is PullEnd.UNREACHABLE  # type: ignore[operator]


def test_the_rate_bounds_all_pulls_together() -> None:
    """The second one waits for what the first one was given."""
    source = Source()
    with (
        serving(source, PageServerBounds(bytes_per_second=1.0)) as server,
        pulling() as puller,
        ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(pull, puller, server.address, keys_of(1))
        assert first.result().end is PullEnd.COMPLETE
        second = pool.submit(pull, puller, over_tcp(server.address), keys_of(1))
        wait_until(lambda: source.num_reads == 2)
        server.close()
        assert second.result().num_pages == 0


def test_where_nobody_can_listen_it_says_so() -> None:
    with pytest.raises(OSError):
        PageServer(SECRET, "a", Source(), "192.0.2.1")


@pytest.mark.parametrize("name", ["max_connections", "num_slots", "bytes_per_second", "stalled_seconds"])
def test_bounds_are_above_0(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be above 0, got 0"):
        PageServerBounds(**{name: 0})
    with pytest.raises(ValueError, match="num_slots must be at most 64, got 65"):
        PageServerBounds(num_slots=65)

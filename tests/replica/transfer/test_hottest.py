"""What is said of pages beside pulls: which are the hottest, and that some may be had before their holder ends."""

import time

import msgspec
import pytest

from replica.channel.frames import BadFrame, framed
from replica.messages import PageAddress
from replica.transfer.page_protocol import MAX_HOT_BLOCKS, AskHottest, Hottest, Offer, ask_of, hottest_of
from replica.transfer.timed_socket import TimedSocket
from tests.replica.transfer.pages import IDENTITY, Source, keys_of, over_local_socket, over_tcp, pull, pulling, serving
from tests.replica.transfer.raw_peers import raw_holder, until_closed
from tests.waiting import BOUND_SECONDS

ELSEWHERE = PageAddress("b", "127.0.0.1", 4711, "name")


def soon() -> float:
    return time.monotonic() + BOUND_SECONDS


@pytest.mark.parametrize("way", [over_tcp, over_local_socket])
def test_a_holder_tells_its_hottest_pages_and_takes_offers(way: object) -> None:
    source = Source()
    source.hot = [tuple(keys_of(2, first)) for first in range(0, 2000, 2)]
    with serving(source) as server, pulling() as puller:
        address = way(server.address)  # type: ignore[operator]
        assert puller.hottest(address, 3, soon()) == source.hot[:3]
        assert puller.hottest(address, 5000, soon()) == source.hot
        assert puller.offer(address, ELSEWHERE, source.hot[:7], soon()) == 7
        assert source.offers == [(ELSEWHERE, [list(page) for page in source.hot[:7]])]
        assert pull(puller, address, keys_of(3)).num_pages == 3


def test_more_blocks_than_one_frame_may_hold_are_left_out() -> None:
    source = Source()
    source.hot = [tuple(keys_of(1)) * 8] * (MAX_HOT_BLOCKS // 8 + 1)
    with serving(source) as server, pulling() as puller:
        assert len(puller.hottest(server.address, MAX_HOT_BLOCKS, soon())) == MAX_HOT_BLOCKS // 8
        assert puller.offer(server.address, ELSEWHERE, source.hot, soon()) == MAX_HOT_BLOCKS // 8


def test_of_another_identity_nothing_is_told_or_taken() -> None:
    source = Source()
    source.hot = [tuple(keys_of(1))]
    with serving(source) as server, pulling(identity=b"another model") as puller:
        assert puller.hottest(server.address, 10, soon()) == []
        assert puller.offer(server.address, ELSEWHERE, source.hot, soon()) == 0
        assert source.offers == []


def test_who_is_gone_or_lies_has_nothing() -> None:
    def say(what: bytes) -> object:
        def said(sock: TimedSocket) -> None:
            sock.write(framed(what))
            until_closed(sock)

        return said

    with pulling() as puller:
        assert puller.hottest(ELSEWHERE, 10, soon()) == []
        for what in (b"", b"garbage", msgspec.msgpack.encode(Hottest([[b"short"]]))):
            with raw_holder(say(what)) as address:  # type: ignore[arg-type]
                deadline = time.monotonic() + 0.5
                assert puller.hottest(address, 10, deadline) == []


@pytest.mark.parametrize(
    "ask",
    [
        AskHottest(IDENTITY, -1),
        AskHottest(IDENTITY, MAX_HOT_BLOCKS + 1),
        AskHottest(b"x" * 65, 1),
        Offer(IDENTITY, "b", "h 1 ", [[]]),
        Offer(IDENTITY, "b", "h 1 ", [[b"short"]]),
    ],
)
def test_what_is_out_of_bounds_is_refused(ask: AskHottest | Offer) -> None:
    with pytest.raises(BadFrame):
        ask_of(msgspec.msgpack.encode(ask))


def test_an_answer_with_a_page_of_no_blocks_is_refused() -> None:
    with pytest.raises(BadFrame):
        hottest_of(msgspec.msgpack.encode(Hottest([[]])))


def test_an_offer_from_nowhere_ends_the_connection_alone() -> None:
    source = Source()
    with serving(source) as server, pulling() as puller:
        nowhere = PageAddress("b", "host with blanks", 1, "")
        assert puller.offer(server.address, nowhere, [tuple(keys_of(1))], soon()) == 0
        assert source.offers == []
        assert pull(puller, server.address, keys_of(2)).num_pages == 2

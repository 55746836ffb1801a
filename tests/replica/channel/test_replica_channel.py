"""The replica's end over real sockets: who gets in, what comes out, and that nothing stays when the ingress is gone."""

import asyncio

import pytest

from replica.channel import codec
from replica.channel import server as channel_server
from replica.channel.frames import framed
from replica.channel.handshake import SIDE_CHANNEL, ConnectingHandshake
from replica.channel.replica_channel import ChannelBounds
from replica.errors import ChannelClosed, EngineOverloaded
from replica.messages import FinishReason
from tests.replica.channel.raw_ingress import CountingEngine, Listening, request_of
from tests.waiting import eventually

uvloop = pytest.importorskip("uvloop")


async def test_many_requests_share_one_connection() -> None:
    async with Listening(CountingEngine()) as replica:
        ingress = await replica.open()
        ingress.start(request_of(name, 5) for name in "abc")
        answers = await ingress.answers(*"abc")
    for name, chunks in answers.items():
        assert "".join(chunk.text for chunk in chunks) == "xxxxx"
        assert {chunk.request_id for chunk in chunks} == {name}
        assert chunks[-1].finish_reason is FinishReason.STOP


def test_it_works_on_uvloop_too() -> None:
    """Ray Serve runs on it where it is installed; its transports are no asyncio.Transport by inheritance."""
    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(test_many_requests_share_one_connection())
    finally:
        loop.close()


async def test_what_one_step_gives_to_all_is_one_write() -> None:
    engine = CountingEngine(hold=0)
    async with Listening(engine) as replica:
        ingress = await replica.open()
        ingress.start(request_of(name) for name in "abcd")
        await eventually(lambda: len(engine.open) == 4)
        while len(await ingress.messages()) < 4:  # all have been taken
            pass
        engine.release.set()
        first = await ingress.messages()
    assert [message.request_id for message in first if isinstance(message, codec.Answered)] == list("abcd")


async def test_a_request_is_taken_at_once_and_the_first_token_is_not_held_back() -> None:
    engine = CountingEngine(hold=1)
    async with Listening(engine) as replica:
        ingress = await replica.open()
        ingress.start([request_of("r")])
        got: list[codec.FromReplica] = []
        while len(got) < 2:
            got += await ingress.messages()
        taken, first = got
    assert taken == codec.Answered("r", [])
    assert isinstance(first, codec.Answered)
    assert first.chunks[0].text == "x"


async def test_a_refusal_keeps_its_meaning() -> None:
    async with Listening(CountingEngine(error=EngineOverloaded("full"))) as replica:
        ingress = await replica.open()
        ingress.start([request_of("r")])
        assert await ingress.messages() == [codec.Answered("r", []), codec.Failed("r", "overloaded", "full")]


async def test_24_a13_a_request_that_is_cancelled_leaves_the_engine_and_the_others_go_on() -> None:
    engine = CountingEngine(hold=1)
    async with Listening(engine) as replica:
        ingress = await replica.open()
        ingress.start([request_of("left"), request_of("stays")])
        await eventually(lambda: engine.given == 2)
        ingress.write(codec.encode(codec.Cancel("left")) + codec.encode(codec.Cancel("never there")))
        await eventually(lambda: engine.open == {"stays"})
        engine.release.set()
        while True:
            messages = await ingress.messages()
            if any(isinstance(m, codec.Answered) and m.chunks and m.chunks[-1].finish_reason for m in messages):
                break
    assert engine.open == set()


@pytest.mark.parametrize("hold", [0, 1], ids=["queued", "decoding"])
async def test_an_ingress_that_dies_takes_its_requests_with_it_and_no_other_s(hold: int) -> None:
    engine = CountingEngine(hold=hold)
    async with Listening(engine) as replica:
        dying, living = await replica.open(), await replica.open()
        dying.start(request_of(name) for name in "abc")
        living.start([request_of("d")])
        await eventually(lambda: engine.open == set("abcd"))
        dying.leave()
        await eventually(lambda: engine.open == {"d"})
        await eventually(lambda: replica.server.num_requests == 1)
        await asyncio.wait([replica.holding[0]], timeout=20)
        assert replica.holding[0].done(), "Ray must not count the channel any more"
        engine.release.set()
        assert len((await living.answers("d"))["d"]) == 4


async def test_a_slow_reader_holds_back_its_requests_within_a_bound() -> None:
    """What does not fit into the buffers stays in the engine's queues, and nothing of it is lost."""
    bounds = ChannelBounds(buffer_bytes=2**14)
    num_chunks, text = 4000, "x" * 4096
    engine = CountingEngine(text=text)
    async with Listening(engine, bounds) as replica:
        ingress = await replica.open()
        ingress.writer.transport.pause_reading()  # type: ignore[attr-defined]
        ingress.start([request_of("r", num_chunks)])
        given = -1
        while given != engine.given:  # until it comes no further: the kernel's buffers are full too
            given = engine.given
            await asyncio.sleep(0.1)
        assert 0 < given < num_chunks
        ingress.writer.transport.resume_reading()  # type: ignore[attr-defined]
        chunks = (await ingress.answers("r"))["r"]
    assert len(chunks) == num_chunks + 1


async def test_an_ingress_that_reads_nothing_is_given_up() -> None:
    engine = CountingEngine(text="x" * 2**16)
    async with Listening(engine, ChannelBounds(buffer_bytes=2**14, stalled_seconds=0.05)) as replica:
        ingress = await replica.open()
        ingress.writer.transport.pause_reading()  # type: ignore[attr-defined]
        ingress.start([request_of("r", 10_000)])
        await eventually(lambda: engine.given > 0 and engine.open == set())


async def test_another_secret_is_refused_and_nothing_is_told() -> None:
    async with Listening(CountingEngine()) as replica:
        ingress = await replica.connect()
        challenge = await ingress.frame()
        ingress.write(framed(ConnectingHandshake(b"another secret!!", "a", SIDE_CHANNEL).answer(challenge)))
        assert await ingress.reader.read() == b""


async def test_an_answer_that_was_overheard_is_refused() -> None:
    async with Listening(CountingEngine()) as replica:
        first, second = await replica.connect(), await replica.connect()
        overheard = framed(ConnectingHandshake(b"0123456789abcdef", "a", SIDE_CHANNEL).answer(await first.frame()))
        await second.frame()
        second.write(overheard)
        assert await second.reader.read() == b""


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, framed(b""), framed(b"x" * 80), framed(b"x" * 128)],
    ids=["HTTP", "a huge length", "an empty frame", "a wrong answer", "a longer one"],
)
async def test_garbage_before_the_proof_ends_the_connection(data: bytes) -> None:
    async with Listening(CountingEngine()) as replica:
        ingress = await replica.connect()
        await ingress.frame()
        ingress.write(data)
        assert await ingress.is_closed()


async def test_a_connection_that_proves_nothing_is_ended() -> None:
    async with Listening(CountingEngine(), ChannelBounds(handshake_seconds=0.05)) as replica:
        ingress = await replica.connect()
        await ingress.frame()
        ingress.write(framed(b"x" * 80)[:-1])  # half a frame
        assert await ingress.is_closed()


async def test_connections_that_prove_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_server, "MAX_UNPROVEN", 2)
    async with Listening(CountingEngine()) as replica:
        idle = [await replica.connect() for _ in range(2)]
        for each in idle:
            await each.frame()
        newest = await replica.connect()
        challenge = await newest.frame()
        assert await idle[0].is_closed()
        await newest.prove(challenge)


async def test_idle_connections_do_not_keep_an_ingress_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reconnects as often as connections end would else hold every place."""
    monkeypatch.setattr(channel_server, "MAX_UNPROVEN", 4)
    engine = CountingEngine()
    async with Listening(engine) as replica:
        idle = [await replica.connect() for _ in range(12)]
        ingress = await replica.open()
        ingress.start([request_of("r", 2)])
        assert len((await ingress.answers("r"))["r"]) == 3
        for each in idle[:8]:
            assert await each.is_closed()


async def test_no_request_is_taken_before_ray_holds_the_channel() -> None:
    """A replica that is to stop waits for the calls that Ray knows of, so there must be one."""
    engine = CountingEngine()
    async with Listening(engine) as replica:
        ingress = await replica.connect()
        await ingress.prove()
        ingress.start([request_of("r")])
        assert await ingress.is_closed()
    assert engine.given == 0


@pytest.mark.parametrize("data", [framed(b"\xc1"), framed(b"x" * 100), b"\xff" * 8], ids=["no msgpack", "text", "long"])
async def test_garbage_on_an_open_channel_ends_it_and_its_requests(data: bytes) -> None:
    engine = CountingEngine(hold=1)
    async with Listening(engine) as replica:
        ingress = await replica.open()
        ingress.start([request_of("r")])
        await eventually(lambda: engine.open == {"r"})
        ingress.write(data)
        assert await ingress.is_closed()
        await eventually(lambda: engine.open == set())


async def test_an_unknown_channel_cannot_be_held() -> None:
    async with Listening(CountingEngine()) as replica:
        with pytest.raises(ChannelClosed):
            await replica.server.hold(b"x" * 16)


async def test_a_hold_that_ray_cancels_ends_the_channel() -> None:
    engine = CountingEngine(hold=0)
    async with Listening(engine) as replica:
        ingress = await replica.open()
        ingress.start([request_of("r")])
        await eventually(lambda: engine.open == {"r"})
        replica.holding[0].cancel()
        assert await ingress.is_closed()
        await eventually(lambda: engine.open == set())


@pytest.mark.parametrize("field", ["handshake_seconds", "buffer_bytes", "stalled_seconds"])
def test_bounds_out_of_bounds_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ChannelBounds(**{field: 0})

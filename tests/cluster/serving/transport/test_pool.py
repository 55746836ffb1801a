"""Channels are opened, held, lost, opened again and ended, over real sockets; and requests always find a way."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost
from cluster.serving.relay import RelaySettings, RequestRelay
from cluster.serving.transport import channel_pool as channel_pool
from cluster.serving.transport.channel_pool import ChannelPool, PoolListeners, PoolSettings
from cluster.serving.transport.ingress_channel import ChannelLost, IngressChannel
from cluster.serving.transport.transports import HandleTransport, SideChannelTransport
from replica.channel import codec
from replica.channel.frames import FrameReader, framed
from replica.channel.handshake import SIDE_CHANNEL, ListeningHandshake
from replica.messages import ChannelAddress, FinishReason, GenerateRequest, TokenChunk
from replica.sampling_params import SamplingParams
from tests.cluster.serving.scripted_replicas import (
    HANG,
    SECRET,
    ListeningReplica,
    ScriptedReplicas,
    answer,
    items,
    router_over,
)
from tests.waiting import BOUND_SECONDS, eventually


def a_request(request_id: str = "r") -> GenerateRequest:
    return GenerateRequest(request_id, [1, 2], SamplingParams(max_tokens=5), time.monotonic())


class Pooled:
    """A pool over scripted replicas, with what it told and a clock that only tests move."""

    def __init__(self) -> None:
        self.replicas = ScriptedReplicas({"a": answer("Hel", "lo"), "b": answer("ok")})
        self.failures: list[str] = []
        self.gone: list[str] = []
        self.now = 0.0
        self.pool = ChannelPool(
            self.replicas, SECRET, PoolListeners(on_failure=self.failures.append, on_gone=self.gone.append),
            PoolSettings(open_seconds=BOUND_SECONDS, retry_seconds=10), lambda: self.now,
        )  # fmt: skip

    @property
    def a(self) -> ListeningReplica:
        return self.replicas.listener("a")

    async def open_a(self) -> IngressChannel:
        channel = await self.pool.opened("a")
        assert channel is not None
        return channel

    def cut(self) -> None:
        """The network loses the connections to a; the replica lives."""
        for channel in list(self.a.server._proven.values()):
            channel.close()


@pytest.fixture
async def pooled() -> AsyncIterator[Pooled]:
    made = Pooled()
    yield made
    made.pool.close()
    made.replicas.close()


async def text_from(channel: IngressChannel, request_id: str = "r") -> str:
    inbox, text = channel.send(a_request(request_id)), ""
    while True:
        for chunk in await anext(inbox):
            text += chunk.text
            if chunk.finish_reason is not None:
                return text


async def test_all_share_one_channel_to_a_replica(pooled: Pooled) -> None:
    channels = await asyncio.gather(*(pooled.pool.opened("a") for _ in range(5)))
    assert len(set(channels)) == 1
    channel = await pooled.open_a()
    assert await asyncio.gather(*(text_from(channel, str(n)) for n in range(5))) == ["Hello"] * 5
    assert pooled.failures == []


async def test_a_replica_that_starts_gets_its_channel_before_anybody_needs_it(pooled: Pooled) -> None:
    pooled.pool.follow(["a", "b"])
    await eventually(lambda: pooled.pool.channel("a") is not None and pooled.pool.channel("b") is not None)


async def test_a_replica_that_stops_keeps_its_channel_for_what_runs(pooled: Pooled) -> None:
    """Ray waits for the calls that hold channels, so these must end with the last answer, and not before."""
    release = asyncio.Event()
    pooled.replicas.scripts["a"] = items(release, [TokenChunk("r", finish_reason=FinishReason.STOP)])
    channel = await pooled.open_a()
    inbox = channel.send(a_request())
    assert await anext(inbox) == []  # it was taken
    pooled.pool.follow(["b"])
    assert not channel.closed.done()
    release.set()
    chunks: list[TokenChunk] = []
    while not chunks or chunks[-1].finish_reason is None:
        chunks += await anext(inbox)
    await eventually(lambda: channel.closed.done() and not pooled.a.server._proven)
    assert pooled.failures == []


async def test_an_idle_channel_to_a_replica_that_stops_ends_at_once(pooled: Pooled) -> None:
    channel = await pooled.open_a()
    pooled.pool.follow([])
    await eventually(channel.closed.done)
    assert pooled.failures == []


async def test_a_lost_connection_ends_its_requests_and_the_next_opens_another(pooled: Pooled) -> None:
    pooled.replicas.scripts["a"] = items(HANG)
    channel = await pooled.open_a()
    inbox = channel.send(a_request())
    await pooled.replicas.hanging.wait()
    pooled.cut()
    assert await anext(inbox) == []  # it was taken
    with pytest.raises(ChannelLost):
        await anext(inbox)
    assert pooled.failures == ["lost"]
    assert pooled.gone == []
    await eventually(lambda: pooled.replicas.num_open == 0)
    with pytest.raises(ChannelLost):
        channel.send(a_request())
    pooled.replicas.scripts["a"] = answer("again")
    assert await text_from(await pooled.open_a()) == "again"


async def test_46_a_replica_whose_machine_is_gone_ends_its_requests(
    pooled: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No packet tells of it, but Ray does."""
    monkeypatch.setattr(channel_pool, "_LAST_WORDS_SECONDS", 0.01)
    pooled.replicas.scripts["a"] = items(HANG)
    channel = await pooled.open_a()
    inbox = channel.send(a_request())
    await pooled.replicas.hanging.wait()
    pooled.a._died.set_exception(ActorDiedError())
    assert await anext(inbox) == []
    with pytest.raises(ChannelLost):
        await anext(inbox)
    assert pooled.gone == ["a"]


async def test_a_cancelled_request_is_told_to_the_replica_and_the_channel_stays(pooled: Pooled) -> None:
    pooled.replicas.scripts["a"] = items(HANG)
    channel = await pooled.open_a()
    inbox = channel.send(a_request())
    await pooled.replicas.hanging.wait()
    inbox.cancel()
    inbox.cancel()
    await eventually(lambda: pooled.replicas.num_open == 0)
    pooled.replicas.scripts["a"] = answer("next")
    assert await text_from(channel) == "next"


async def failing_address(pooled: Pooled) -> None:
    pooled.a._died.set_exception(ActorDiedError())


async def refusing_port(pooled: Pooled) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pooled.a.address = lambda: _resolved(ChannelAddress("a", "127.0.0.1", port))  # type: ignore[method-assign]


async def other_secret(pooled: Pooled) -> None:
    pooled.a.server._secret = b"another secret!!"


async def hold_that_fails(pooled: Pooled) -> None:
    pooled.a.hold = lambda channel_id: _resolved(None)  # type: ignore[method-assign]


async def cancelled_by_ray(pooled: Pooled) -> None:
    """Ray tells a replica's death in the middle of a call as if the caller had cancelled it."""
    pooled.a.address = _cancelled  # type: ignore[method-assign]


async def _resolved(value: Any) -> Any:
    return value


async def _cancelled() -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (failing_address, "address"),
        (cancelled_by_ray, "address"),
        (refusing_port, "connect"),
        (other_secret, "handshake"),
        (hold_that_fails, "hold"),
    ],
    ids=["address", "cancelled by Ray", "connect", "handshake", "hold"],
)
async def test_a_channel_that_cannot_be_opened_is_counted_and_tried_again_later(
    pooled: Pooled, break_it: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_pool, "_LAST_WORDS_SECONDS", 0.01)
    await break_it(pooled)
    assert await pooled.pool.opened("a") is None
    assert pooled.failures == [reason]
    pooled.now = 9.9
    assert await pooled.pool.opened("a") is None
    assert pooled.failures == [reason]
    del pooled.replicas.listening["a"]
    pooled.now = 10.0
    assert await text_from(await pooled.open_a()) == "Hello"


async def test_an_address_of_another_replica_is_not_used(pooled: Pooled) -> None:
    """Ray sends a call for a replica that is gone to another one."""
    pooled.replicas.listening["a"] = pooled.replicas.listener("b")
    assert await pooled.pool.opened("a") is None
    assert pooled.failures == []


async def test_while_there_is_no_channel_requests_go_by_the_handle(pooled: Pooled) -> None:
    transports: list[str] = []
    fallback = HandleTransport(pooled.replicas, transports.append)
    transport = SideChannelTransport(pooled.pool, fallback, transports.append)
    await transport.send(a_request(), "a")
    assert transports == ["handle"]
    await pooled.open_a()
    await transport.send(a_request(), "a")
    assert transports == ["handle", "side_channel"]
    pooled.cut()
    await eventually(lambda: pooled.failures == ["lost"])
    await transport.send(a_request(), "a")
    assert transports == ["handle", "side_channel", "handle"]


async def test_46_a_request_whose_connection_is_lost_goes_on_where_it_was_if_nobody_else_is_there(
    pooled: Pooled,
) -> None:
    transports: list[str] = []
    router = router_over("a")
    transport = SideChannelTransport(
        pooled.pool, HandleTransport(pooled.replicas, transports.append), transports.append
    )
    call = RequestRelay(router, transport, RelaySettings()).open(a_request())
    await pooled.open_a()
    pooled.replicas.scripts["a"] = items(HANG)
    reader = asyncio.create_task(call.collect())
    await pooled.replicas.hanging.wait()
    pooled.replicas.scripts["a"] = answer("ok")
    pooled.cut()
    assert "".join(chunk.text for chunk in await reader) == "ok"
    assert transports == ["side_channel", "handle"]
    assert router.status()["open_reservations"] == 0


async def test_54_a_connection_that_is_lost_after_the_first_byte_is_told(pooled: Pooled) -> None:
    transport = SideChannelTransport(pooled.pool, HandleTransport(pooled.replicas))
    router = router_over("a", "b")
    pooled.replicas.scripts["a"] = items([TokenChunk("r", text="Hel", token_ids=[1])], HANG)
    await pooled.open_a()
    got = ""
    async with aclosing(RequestRelay(router, transport, RelaySettings()).open(a_request()).stream()) as batches:
        with pytest.raises(ReplicaLost):
            async for chunks in batches:
                got += "".join(chunk.text for chunk in chunks)
                assert all(chunk.finish_reason is None for chunk in chunks)
                pooled.cut()
    assert got == "Hel"
    assert router.status()["open_reservations"] == 0


class SilentReplica(asyncio.Protocol):
    """Proves itself, says that it takes requests, and then nothing more: as one whose event loop is stuck."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._reader = transport, FrameReader(128)
        self._handshake = ListeningHandshake(SECRET, "a", SIDE_CHANNEL)
        transport.write(framed(self._handshake.challenge))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        frame = self._reader.next_frame()
        if frame is not None:
            self._transport.write(framed(self._handshake.answer(frame)[1]) + codec.encode([codec.Held()]))
            self._reader.max_bytes = 2**20
            self.data_received = lambda data: None  # type: ignore[method-assign]


async def test_a_replica_that_does_not_even_take_the_request_is_not_waited_for(pooled: Pooled) -> None:
    server = await asyncio.get_running_loop().create_server(SilentReplica, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pooled.a.address = lambda: _resolved(ChannelAddress("a", "127.0.0.1", port))  # type: ignore[method-assign]
    pooled.a.hold = lambda channel_id: asyncio.Event().wait()  # type: ignore[method-assign]
    relay = RequestRelay(
        router_over("a"), SideChannelTransport(pooled.pool, None), RelaySettings(assignment_timeout_seconds=0.05)
    )
    with pytest.raises(NoReplicaAvailable):
        await relay.open(a_request()).collect()
    server.close()


@pytest.mark.parametrize("field", ["open_seconds", "retry_seconds"])
def test_settings_out_of_bounds_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        PoolSettings(**{field: 0})

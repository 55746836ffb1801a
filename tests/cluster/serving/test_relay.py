"""One prompt on its way: retry, failure, cancellation, and that every reservation ends."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost, RequestTimedOut
from cluster.serving.relay import RelayedCall, RelaySettings, RequestRelay
from cluster.serving.transport.channel_pool import ChannelPool, PoolListeners
from cluster.serving.transport.transports import HandleTransport, SideChannelTransport
from replica.errors import EngineDead, EngineOverloaded, RequestRefused
from replica.messages import FinishReason, GenerateRequest, PageAddress, Pull, TokenChunk, TokenLogprobs
from replica.sampling_params import SamplingParams
from router.decision import Decision
from router.prefix_router import PrefixRouter, RouteRequest
from tests.cluster.serving.scripted_replicas import HANG, SECRET, Script, ScriptedReplicas, answer, items, router_over
from tests.waiting import BOUND_SECONDS, eventually, let_time_pass

PROMPT = list(range(10))


class Relayed:
    """A relay over scripted replicas; idle is what it must be after every request."""

    def __init__(
        self,
        transport: str,
        scripts: dict[str, Script],
        router: PrefixRouter | None = None,
        settings: RelaySettings | None = None,
    ):
        self.replicas = ScriptedReplicas(scripts)
        self.router = router or router_over(*scripts)
        self.num_answers = 0
        self.gone: list[str] = []
        self.transports: list[str] = []
        listeners = PoolListeners(on_failure=lambda reason: None, on_gone=self.gone.append)
        self.channels = ChannelPool(self.replicas, SECRET, listeners)
        self._relay = RequestRelay(
            self.router,
            HandleTransport(self.replicas, self.transports.append)
            if transport == "handle"
            else SideChannelTransport(self.channels, None, self.transports.append),
            settings or RelaySettings(),
            self._on_answer,
        )

    def _on_answer(self) -> None:
        self.num_answers += 1

    def call(self, **fields: Any) -> RelayedCall:
        request = GenerateRequest("r", PROMPT, SamplingParams(max_tokens=5), time.monotonic(), **fields)
        return self._relay.open(request)

    @property
    def tried(self) -> list[str]:
        return [replica_id for replica_id, _ in self.replicas.calls]

    async def assert_idle(self) -> None:
        """The reservation has ended with the request; a replica on the other side of a connection hears of it soon."""
        assert self.router.status()["open_reservations"] == 0
        await eventually(lambda: not self.replicas.num_open)

    def close(self) -> None:
        self.channels.close()
        self.replicas.close()


RelayOver = Callable[..., Relayed]


@pytest.fixture(params=["handle", "side_channel"])
async def relay_over(request: pytest.FixtureRequest) -> AsyncIterator[RelayOver]:
    """Makes relays over replicas, by name and script, on both transports."""
    made = []

    def make(router: PrefixRouter | None = None, settings: RelaySettings | None = None, **scripts: Script) -> Relayed:
        made.append(Relayed(request.param, scripts, router, settings))
        return made[-1]

    yield make
    for relayed in made:
        relayed.close()
    assert {name for relayed in made for name in relayed.transports} <= {request.param}


only_by_handle = pytest.mark.parametrize("relay_over", ["handle"], indirect=True)
"""A replica takes what comes over a side channel as soon as its event loop gets to it."""


def text_of(chunks: list[TokenChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def task_error(cause: Exception) -> Exception:
    """As Ray wraps what a replica raises."""
    return RayTaskError("generate", "traceback", cause).as_instanceof_cause()


async def read(call: RelayedCall, stream: bool) -> list[TokenChunk]:
    if not stream:
        return await call.collect()
    async with aclosing(call.stream()) as batches:
        return [chunk async for chunks in batches for chunk in chunks]


both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@both_modes
async def test_an_answer_comes_through_and_the_reservation_ends(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(a=answer("Hel", "lo"))
    call = relayed.call()
    chunks = await read(call, stream)
    assert text_of(chunks) == "Hello"
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert call.decision is not None
    assert call.decision.replica_id == "a"
    assert relayed.num_answers == 1
    await relayed.assert_idle()


async def test_the_replica_gets_the_token_ids(relay_over: RelayOver) -> None:
    relayed = relay_over(a=answer())
    call = relayed.call()
    await call.collect()
    sent = relayed.replicas.calls[0][1]
    assert sent.token_ids == PROMPT


@pytest.mark.parametrize("pages_at", ["127.0.0.1 7 local-name", "127.0.0.1 7 ", "of another version"])
async def test_the_replica_hears_whose_pages_it_may_take(relay_over: RelayOver, pages_at: str) -> None:
    relayed = relay_over(a=answer(), b=answer())
    decide = relayed.router.route

    def route(request: RouteRequest, exclude: frozenset[str] = frozenset()) -> Decision:
        found = decide(request, exclude)
        return replace(found, predicted_hit_tokens=2, pull_from="x", pull_tokens=5, pages_at=pages_at)

    relayed.router.route = route  # type: ignore[method-assign]
    await relayed.call().collect()
    source = PageAddress("x", "127.0.0.1", 7, pages_at.rpartition(" ")[2])
    assert relayed.replicas.calls[0][1].pull == (Pull(source, 7) if pages_at.startswith("127") else None)


DEATHS = [
    ActorDiedError(),
    ActorUnavailableError("away", None),
    task_error(EngineDead("dead")),
    asyncio.CancelledError(),  # what Ray raises for a task that was cancelled in the replica
]


@both_modes
@pytest.mark.parametrize("death", DEATHS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("taken", [False, True], ids=["on arrival", "while prefilling"])
async def test_46_a_death_before_the_first_byte_is_retried_elsewhere(
    relay_over: RelayOver, stream: bool, death: BaseException, taken: bool
) -> None:
    dying = items([], death) if taken else items(death)
    relayed = relay_over(a=dying, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    assert relayed.tried == ["a", "b"]
    await relayed.assert_idle()


@both_modes
async def test_c41_a_replica_that_shuts_down_is_left_for_another(relay_over: RelayOver, stream: bool) -> None:
    ending = items([], [TokenChunk("r", finish_reason=FinishReason.ABORT, error="shutting down")])
    relayed = relay_over(a=ending, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    await relayed.assert_idle()


@both_modes
async def test_an_answer_without_an_end_is_no_answer(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(a=items([]), b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    await relayed.assert_idle()


async def test_54_a_death_after_the_first_byte_of_a_stream_is_told(relay_over: RelayOver) -> None:
    relayed = relay_over(a=items([], [TokenChunk("r", text="Hel", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    chunks = []
    with pytest.raises(ReplicaLost):
        async for batch in relayed.call().stream():
            chunks += batch
    assert text_of(chunks) == "Hel"
    assert all(chunk.finish_reason is None for chunk in chunks)
    assert relayed.tried == ["a"]
    await relayed.assert_idle()


async def test_46_tokens_without_visible_text_do_not_hinder_a_retry(relay_over: RelayOver) -> None:
    relayed = relay_over(a=items([], [TokenChunk("r", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    assert text_of(await read(relayed.call(), stream=True)) == "ok"


async def test_46_kept_logprobs_are_as_good_as_sent(relay_over: RelayOver) -> None:
    """They would stand in the answer twice: whoever writes it has them already."""
    chunk = TokenChunk("r", token_ids=[1], logprobs=[TokenLogprobs(1, -0.5)])
    relayed = relay_over(a=items([], [chunk], ActorDiedError()), b=answer("ok"))
    with pytest.raises(ReplicaLost):
        await read(relayed.call(), stream=True)
    await relayed.assert_idle()


async def test_46_an_answer_that_is_not_streamed_is_retried_at_any_time(relay_over: RelayOver) -> None:
    relayed = relay_over(a=items([], [TokenChunk("r", text="Hel", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    assert text_of(await relayed.call().collect()) == "ok"  # and nothing of the first attempt is in it
    await relayed.assert_idle()


@both_modes
async def test_the_number_of_attempts_is_bounded(relay_over: RelayOver, stream: bool) -> None:
    dying = items(ActorDiedError())
    relayed = relay_over(settings=RelaySettings(max_attempts=2), a=dying, b=dying, c=answer("ok"))
    with pytest.raises(ReplicaLost):
        await read(relayed.call(), stream)
    assert relayed.tried == ["a", "b"]
    await relayed.assert_idle()


@both_modes
async def test_53_a_full_replica_is_left_for_another_once(relay_over: RelayOver, stream: bool) -> None:
    full = items([], task_error(EngineOverloaded("full")))
    relayed = relay_over(a=full, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    relayed = relay_over(a=full, b=full, c=answer("ok"))
    with pytest.raises(EngineOverloaded):
        await read(relayed.call(), stream)
    assert relayed.tried == ["a", "b"]
    await relayed.assert_idle()


@both_modes
async def test_53_the_only_replica_is_full(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(a=items([], task_error(EngineOverloaded("full"))))
    with pytest.raises(EngineOverloaded):
        await read(relayed.call(), stream)
    await relayed.assert_idle()


@both_modes
@pytest.mark.parametrize("error", [RequestRefused("no", param="prompt", code="c"), RuntimeError("a fault of ours")])
async def test_what_another_replica_would_refuse_too_is_not_retried(
    relay_over: RelayOver, stream: bool, error: Exception
) -> None:
    relayed = relay_over(a=items([], task_error(error)), b=answer("ok"))
    with pytest.raises(type(error)) as raised:
        await read(relayed.call(), stream)
    assert not isinstance(raised.value, RayTaskError)
    if isinstance(error, RequestRefused):
        assert (raised.value.param, raised.value.code) == ("prompt", "c")  # type: ignore[attr-defined]
    assert relayed.tried == ["a"]
    await relayed.assert_idle()


@both_modes
async def test_no_replica_at_all(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(router=router_over())
    with pytest.raises(NoReplicaAvailable) as raised:
        await read(relayed.call(), stream)
    assert raised.value.retry_after_seconds == RelaySettings().retry_after_seconds
    await relayed.assert_idle()


@only_by_handle
@both_modes
async def test_ray_would_wait_for_ever_and_we_do_not(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(settings=RelaySettings(assignment_timeout_seconds=0.01), a=items(HANG))
    with pytest.raises(NoReplicaAvailable):
        await read(relayed.call(), stream)
    await relayed.assert_idle()


@both_modes
async def test_a_request_that_a_replica_has_taken_may_queue_longer_than_that(
    relay_over: RelayOver, stream: bool
) -> None:
    settings = RelaySettings(assignment_timeout_seconds=2 * BOUND_SECONDS)
    relayed = relay_over(settings=settings, a=items([], HANG))
    reader = asyncio.create_task(read(relayed.call(), stream))
    await eventually(lambda: relayed.num_answers)
    let_time_pass(3 * BOUND_SECONDS)
    for _ in range(20):  # a timer that were still armed would fire in the first round
        await asyncio.sleep(0)
    assert not reader.done()
    reader.cancel()
    await asyncio.wait([reader])
    await relayed.assert_idle()


@both_modes
async def test_a_deadline_that_the_engine_does_not_keep_is_kept_here(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(settings=RelaySettings(deadline_grace_seconds=0.01), a=items([], HANG))
    with pytest.raises(RequestTimedOut):
        await read(relayed.call(deadline_seconds=time.monotonic()), stream)
    await relayed.assert_idle()


@both_modes
@pytest.mark.parametrize(
    "script",
    [items([], HANG), items([], [TokenChunk("r", text="a", token_ids=[1])], HANG)],
    ids=["queued", "decoding"],
)
async def test_24_a13_cancelling_ends_work_and_reservation(relay_over: RelayOver, stream: bool, script: Script) -> None:
    relayed = relay_over(a=script)
    reader = asyncio.create_task(read(relayed.call(), stream))
    async with asyncio.timeout(BOUND_SECONDS):
        await relayed.replicas.hanging.wait()
    assert relayed.router.status()["open_reservations"] == 1
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
    await relayed.assert_idle()


@only_by_handle
@both_modes
async def test_24_cancelling_what_ray_has_not_assigned_yet(relay_over: RelayOver, stream: bool) -> None:
    relayed = relay_over(a=items(HANG))
    reader = asyncio.create_task(read(relayed.call(), stream))
    async with asyncio.timeout(BOUND_SECONDS):
        await relayed.replicas.hanging.wait()
    reader.cancel()
    await asyncio.wait([reader])
    await relayed.assert_idle()


async def test_24_a_stream_that_is_left_early_ends_work_and_reservation(relay_over: RelayOver) -> None:
    relayed = relay_over(a=answer(*"abcdef"))
    async with aclosing(relayed.call().stream()) as batches:
        async for _ in batches:
            break
    await relayed.assert_idle()


@pytest.mark.parametrize("field", ["assignment_timeout_seconds", "deadline_grace_seconds", "retry_after_seconds"])
def test_settings_out_of_bounds_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        RelaySettings(**{field: 0})
    with pytest.raises(ValueError, match="max_attempts"):
        RelaySettings(max_attempts=0)

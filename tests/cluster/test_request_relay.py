"""One prompt on its way: retry, failure, cancellation, and that every reservation ends."""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost, RequestTimedOut
from cluster.request_relay import RelayedCall, RelaySettings, RequestRelay
from cluster.transports import HandleTransport
from replica.errors import EngineDead, EngineOverloaded, RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk, TokenLogprobs
from replica.sampling_params import SamplingParams
from router.prefix_router import PrefixRouter
from tests.cluster.scripted_replicas import HANG, Script, ScriptedReplicas, answer, items, router_over

DEADLINE_SECONDS = 20
PROMPT = list(range(10))


class Relayed:
    """A relay over scripted replicas; `idle` is what must hold after every request."""

    def __init__(self, router: PrefixRouter | None = None, settings: RelaySettings | None = None, **scripts: Script):
        self.replicas = ScriptedReplicas(scripts)
        self.router = router or router_over(*scripts)
        self.num_answers = 0
        transport = HandleTransport(self.replicas)
        self._relay = RequestRelay(self.router, transport, settings or RelaySettings(), self._on_answer)

    def _on_answer(self) -> None:
        self.num_answers += 1

    def call(self, **fields: Any) -> RelayedCall:
        request = GenerateRequest("r", PROMPT, SamplingParams(max_tokens=5), time.time(), **fields)
        return self._relay.open(request)

    @property
    def tried(self) -> list[str]:
        return [replica_id for replica_id, _ in self.replicas.calls]

    def assert_idle(self) -> None:
        assert self.router.status()["open_reservations"] == 0
        assert self.replicas.open_calls == set()


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
async def test_an_answer_comes_through_and_the_reservation_ends(stream: bool) -> None:
    relayed = Relayed(a=answer("Hel", "lo"))
    call = relayed.call()
    chunks = await read(call, stream)
    assert text_of(chunks) == "Hello"
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert call.decision is not None
    assert call.decision.replica_id == "a"
    assert relayed.num_answers == 1
    relayed.assert_idle()


async def test_the_replica_gets_the_token_ids() -> None:
    relayed = Relayed(a=answer())
    call = relayed.call()
    await call.collect()
    sent = relayed.replicas.calls[0][1]
    assert sent.token_ids == PROMPT


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
    stream: bool, death: BaseException, taken: bool
) -> None:
    dying = items([], death) if taken else items(death)
    relayed = Relayed(a=dying, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    assert relayed.tried == ["a", "b"]
    relayed.assert_idle()


@both_modes
async def test_c41_a_replica_that_shuts_down_is_left_for_another(stream: bool) -> None:
    ending = items([], [TokenChunk("r", finish_reason=FinishReason.ABORT, error="shutting down")])
    relayed = Relayed(a=ending, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    relayed.assert_idle()


@both_modes
async def test_an_answer_without_an_end_is_no_answer(stream: bool) -> None:
    relayed = Relayed(a=items([]), b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    relayed.assert_idle()


async def test_54_a_death_after_the_first_byte_of_a_stream_is_told() -> None:
    relayed = Relayed(a=items([], [TokenChunk("r", text="Hel", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    chunks = []
    with pytest.raises(ReplicaLost):
        async for batch in relayed.call().stream():
            chunks += batch
    assert text_of(chunks) == "Hel"
    assert all(chunk.finish_reason is None for chunk in chunks)
    assert relayed.tried == ["a"]
    relayed.assert_idle()


async def test_46_tokens_without_visible_text_do_not_hinder_a_retry() -> None:
    relayed = Relayed(a=items([], [TokenChunk("r", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    assert text_of(await read(relayed.call(), stream=True)) == "ok"


async def test_46_kept_logprobs_are_as_good_as_sent() -> None:
    """They would stand in the answer twice: whoever writes it has them already."""
    chunk = TokenChunk("r", token_ids=[1], logprobs=[TokenLogprobs(1, -0.5)])
    relayed = Relayed(a=items([], [chunk], ActorDiedError()), b=answer("ok"))
    with pytest.raises(ReplicaLost):
        await read(relayed.call(), stream=True)
    relayed.assert_idle()


async def test_46_an_answer_that_is_not_streamed_is_retried_at_any_time() -> None:
    relayed = Relayed(a=items([], [TokenChunk("r", text="Hel", token_ids=[1])], ActorDiedError()), b=answer("ok"))
    assert text_of(await relayed.call().collect()) == "ok"  # and nothing of the first attempt is in it
    relayed.assert_idle()


@both_modes
async def test_the_number_of_attempts_is_bounded(stream: bool) -> None:
    dying = items(ActorDiedError())
    relayed = Relayed(settings=RelaySettings(max_attempts=2), a=dying, b=dying, c=answer("ok"))
    with pytest.raises(ReplicaLost):
        await read(relayed.call(), stream)
    assert relayed.tried == ["a", "b"]
    relayed.assert_idle()


@both_modes
async def test_53_a_full_replica_is_left_for_another_once(stream: bool) -> None:
    full = items([], task_error(EngineOverloaded("full")))
    relayed = Relayed(a=full, b=answer("ok"))
    assert text_of(await read(relayed.call(), stream)) == "ok"
    relayed = Relayed(a=full, b=full, c=answer("ok"))
    with pytest.raises(EngineOverloaded):
        await read(relayed.call(), stream)
    assert relayed.tried == ["a", "b"]
    relayed.assert_idle()


@both_modes
async def test_53_the_only_replica_is_full(stream: bool) -> None:
    relayed = Relayed(a=items([], task_error(EngineOverloaded("full"))))
    with pytest.raises(EngineOverloaded):
        await read(relayed.call(), stream)
    relayed.assert_idle()


@both_modes
@pytest.mark.parametrize("error", [RequestRefused("no", param="prompt", code="c"), RuntimeError("a fault of ours")])
async def test_what_another_replica_would_refuse_too_is_not_retried(stream: bool, error: Exception) -> None:
    relayed = Relayed(a=items([], task_error(error)), b=answer("ok"))
    with pytest.raises(type(error)) as raised:
        await read(relayed.call(), stream)
    assert not isinstance(raised.value, RayTaskError)
    if isinstance(error, RequestRefused):
        assert (raised.value.param, raised.value.code) == ("prompt", "c")  # type: ignore[attr-defined]
    assert relayed.tried == ["a"]
    relayed.assert_idle()


@both_modes
async def test_no_replica_at_all(stream: bool) -> None:
    relayed = Relayed(router=router_over())
    with pytest.raises(NoReplicaAvailable) as raised:
        await read(relayed.call(), stream)
    assert raised.value.retry_after_seconds == RelaySettings().retry_after_seconds
    relayed.assert_idle()


@both_modes
async def test_ray_would_wait_for_ever_and_we_do_not(stream: bool) -> None:
    relayed = Relayed(settings=RelaySettings(assignment_timeout_seconds=0.01), a=items(HANG))
    with pytest.raises(NoReplicaAvailable):
        await read(relayed.call(), stream)
    relayed.assert_idle()


@both_modes
async def test_a_request_that_a_replica_has_taken_may_queue_longer_than_that(stream: bool) -> None:
    relayed = Relayed(settings=RelaySettings(assignment_timeout_seconds=0.01), a=items([], HANG))
    reader = asyncio.create_task(read(relayed.call(), stream))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await relayed.replicas.hanging.wait()
    done, _ = await asyncio.wait([reader], timeout=0.1)
    assert not done
    reader.cancel()
    await asyncio.wait([reader])
    relayed.assert_idle()


@both_modes
async def test_a_deadline_that_the_engine_does_not_keep_is_kept_here(stream: bool) -> None:
    relayed = Relayed(settings=RelaySettings(deadline_grace_seconds=0.01), a=items([], HANG))
    with pytest.raises(RequestTimedOut):
        await read(relayed.call(deadline_seconds=time.time()), stream)
    relayed.assert_idle()


@both_modes
@pytest.mark.parametrize(
    "script",
    [items(HANG), items([], HANG), items([], [TokenChunk("r", text="a", token_ids=[1])], HANG)],
    ids=["unassigned", "queued", "decoding"],
)
async def test_24_a13_cancelling_ends_work_and_reservation(stream: bool, script: Script) -> None:
    relayed = Relayed(a=script)
    reader = asyncio.create_task(read(relayed.call(), stream))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await relayed.replicas.hanging.wait()
    assert relayed.router.status()["open_reservations"] == 1
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()
    relayed.assert_idle()


async def test_24_a_stream_that_is_left_early_ends_work_and_reservation() -> None:
    relayed = Relayed(a=answer(*"abcdef"))
    async with aclosing(relayed.call().stream()) as batches:
        async for _ in batches:
            break
    relayed.assert_idle()


@pytest.mark.parametrize("field", ["assignment_timeout_seconds", "deadline_grace_seconds", "retry_after_seconds"])
def test_settings_out_of_bounds_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        RelaySettings(**{field: 0})
    with pytest.raises(ValueError, match="max_attempts"):
        RelaySettings(max_attempts=0)

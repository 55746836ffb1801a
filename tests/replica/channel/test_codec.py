"""Requests and answers arrive as they were sent, and nothing else is read."""

import asyncio
import contextlib
import math
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.block_hasher import ExtraKeys
from replica.channel import codec
from replica.channel.frames import BadFrame, FrameReader
from replica.errors import EngineDead, EngineOverloaded, RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk, TokenLogprobs, Usage
from replica.sampling_params import SamplingParams


def payload_of(frame: bytes) -> bytes:
    reader = FrameReader(2**20)
    reader.feed(frame)
    payload = reader.next_frame()
    assert payload is not None
    return payload


def test_a_request_keeps_every_field() -> None:
    sampling = SamplingParams(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, seed=-(2**63), stop=("a", "ö"), stop_token_ids=(1, 2),
        ignore_eos=True, min_p=0.1, presence_penalty=1.0, frequency_penalty=-1.0, repetition_penalty=1.5,
        logit_bias=((7, -100.0),), min_tokens=2, top_logprobs=4, prompt_logprobs=True, grammar="{}",
    )  # fmt: skip
    request = GenerateRequest(
        "id", [1, 2, 3], sampling, 12.5, ExtraKeys(cache_salt="s"), deadline_seconds=99.0, session_id="x", priority=-3
    )
    assert codec.from_ingress(payload_of(codec.encode(codec.Start(request)))) == codec.Start(request)


def test_a_request_whose_values_are_out_of_bounds_is_not_read() -> None:
    good = msgspec.msgpack.decode(
        payload_of(codec.encode(codec.Start(GenerateRequest("id", [1], SamplingParams(), 0.0))))
    )
    good["request"]["sampling"]["temperature"] = math.nan
    with pytest.raises(BadFrame):
        codec.from_ingress(msgspec.msgpack.encode(good))


def test_chunks_keep_every_field() -> None:
    chunk = TokenChunk(
        "id", "text 😀", [1, 2], FinishReason.TIMEOUT, Usage(3, 2, 1), "late",
        [TokenLogprobs(1, -0.5, ((1, -0.5), (2, -math.inf)))], [TokenLogprobs(9, -1.0)],
    )  # fmt: skip
    sent = [codec.Answered("id", [chunk, TokenChunk("id")]), codec.Held()]
    answered, held = codec.from_replica(payload_of(codec.encode(sent)))
    assert isinstance(answered, codec.Answered)
    assert answered.chunks[0] == chunk
    assert answered.chunks[1].finish_reason is None
    assert held == codec.Held()


@pytest.mark.parametrize(
    "error",
    [
        RequestRefused("too long", param="prompt", code="context_length_exceeded"),
        EngineOverloaded("full"),
        EngineDead("dead"),
        StopAsyncIteration(),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_meaning(error: BaseException) -> None:
    (failed,) = codec.from_replica(payload_of(codec.encode([codec.Failed.by("id", error)])))
    assert isinstance(failed, codec.Failed)
    assert (type(failed.error), failed.error.args) == (type(error), error.args)
    if isinstance(error, RequestRefused):
        assert vars(failed.error) == vars(error)


def test_a_fault_comes_across_as_text() -> None:
    assert "ZeroDivisionError: by zero" in str(codec.Failed.by("id", ZeroDivisionError("by zero")).error)
    assert isinstance(codec.Failed("id", "a kind of a later version").error, RuntimeError)


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_bad_frame(payload: bytes) -> None:
    for decode in (codec.from_ingress, codec.from_replica):
        with contextlib.suppress(BadFrame):
            decode(payload)


def test_a_pickle_is_not_read() -> None:
    with pytest.raises(BadFrame):
        codec.from_ingress(pickle.dumps(codec.Cancel("id")))

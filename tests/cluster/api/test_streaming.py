"""Server-sent events: form, order, ends."""

import json
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from cluster.api.chunk_merger import ChunkMerger
from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost, RequestTimedOut
from replica.errors import EngineOverloaded, RequestRefused
from replica.messages import FinishReason, GenerateRequest, TokenChunk, Usage
from replica.sampling_params import SamplingParams
from tests.cluster.api.conftest import Api
from tests.cluster.api.sse import events
from tests.cluster.openai_schema import check
from tests.cluster.scripted_engine import ScriptedEngine, fail, say


async def test_chat_chunks_have_the_official_form(api: Api) -> None:
    response = await api.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-warmlane-replica"] == "replica-a"
    chunks, done = events(response.text)
    assert done
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello"


async def test_completion_chunks_have_the_official_form(api: Api) -> None:
    chunks, done = events((await api.complete(stream=True)).text)
    assert done
    for chunk in chunks:
        check("CompletionChunk", chunk)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello"


BREAKS = "a\u2028b\u2029c\x85d"


@pytest.mark.parametrize("kind", ["chat", "completion", "error"])
async def test_an_event_is_one_line_for_readers_that_split_at_unicode_s_line_breaks(api: Api, kind: str) -> None:
    """Python's `splitlines` and httpx's `iter_lines` do."""
    api.engine.script = say("Hello", BREAKS) if kind != "error" else fail(RequestTimedOut(BREAKS), "Hello")
    response = await (api.complete if kind == "completion" else api.chat)(stream=True)
    lines = [line for line in response.text.splitlines() if line]
    payloads = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    assert BREAKS in _texts(payloads)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


async def test_33_finish_reason_is_null_until_the_last_chunk_and_the_id_is_one(api: Api) -> None:
    api.engine.script = say("a", "b", "c", reason=FinishReason.LENGTH)
    chunks, _ = events((await api.chat(stream=True, n=2)).text)
    for index in (0, 1):
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["index"] == index]
        assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {}])
async def test_32_no_usage_when_not_asked_for(api: Api, options: dict | None) -> None:
    for response in (await api.chat(stream=True, stream_options=options), await api.complete(stream=True)):
        assert all("usage" not in chunk and chunk["choices"] for chunk in events(response.text)[0])


@pytest.mark.parametrize("cached_tokens", [0, 16])
@pytest.mark.parametrize("options", [{}, {"continuous_usage_stats": True}], ids=["", "as guidellm asks"])
async def test_31_32_a28_one_last_chunk_with_usage_when_asked_for(
    api: Api, options: dict[str, bool], cached_tokens: int
) -> None:
    api.engine.script = say("Hel", "lo", cached_tokens=cached_tokens)
    for call in (api.chat, api.complete):
        response = await call(stream=True, stream_options={"include_usage": True, **options})
        chunks, done = events(response.text)
        assert done
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": cached_tokens}
        assert chunks[-1]["usage"]["completion_tokens"] == 2
        assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_chunks_without_text_send_nothing(api: Api) -> None:
    api.engine.script = say("", "", "a", "")
    chunks, _ = events((await api.complete(stream=True)).text)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", ""]  # the last one carries the finish reason


async def test_an_answer_without_text_still_ends(api: Api) -> None:
    api.engine.script = say()
    chunks, done = events((await api.chat(stream=True)).text)
    assert done
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == ["stop"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (
            RequestRefused("too long", param="messages", code="context_length_exceeded"),
            400,
            "context_length_exceeded",
            None,
        ),
        (EngineOverloaded("full"), 429, "engine_overloaded", "1"),
        (NoReplicaAvailable("none", 2.5), 503, "no_replica_available", "3"),
        (ReplicaLost("gone"), 503, "replica_lost", "1"),
        (RequestTimedOut("late"), 408, "deadline_exceeded", None),
        (RuntimeError("secret"), 500, "internal_error", None),
        (TimeoutError("secret"), 500, "internal_error", None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_failures_before_the_first_token_are_http_errors(
    api: Api, error: Exception, status: int, code: str, retry_after: str | None, stream: bool
) -> None:
    api.engine.script = fail(error)
    response = await api.chat(stream=stream)
    assert response.status_code == status
    check("ErrorResponse", response.json())
    assert response.json()["error"]["code"] == code
    assert "secret" not in response.text
    assert response.headers.get("retry-after") == retry_after
    assert api.engine.num_running == 0


@pytest.mark.parametrize(
    ("reason", "status"),
    [(FinishReason.TIMEOUT, 408), (FinishReason.REJECTED, 429), (FinishReason.ERROR, 500), (FinishReason.ABORT, 503)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_last_chunk_may_be_an_error(api: Api, reason: FinishReason, status: int, stream: bool) -> None:
    def script(request: GenerateRequest) -> Iterator[TokenChunk | Exception]:
        yield TokenChunk(request.request_id, finish_reason=reason, error="told so")

    api.engine.script = script
    response = await api.chat(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "told so"


async def test_54_a_failure_after_the_first_token_ends_the_stream_with_an_error(api: Api) -> None:
    api.engine.script = fail(ReplicaLost("the replica died"), "Hel")
    response = await api.chat(stream=True)
    assert response.status_code == 200
    chunks, done = events(response.text)
    assert not done
    assert chunks[0]["choices"][0]["delta"]["content"] == "Hel"
    check("ErrorResponse", chunks[-1])
    assert chunks[-1]["error"]["code"] == "replica_lost"
    assert all(choice["finish_reason"] is None for chunk in chunks[:-1] for choice in chunk["choices"])
    assert [type(error) for error in api.failures] == [ReplicaLost]


@pytest.mark.parametrize("stream", [False, True])
async def test_a15_one_failed_choice_ends_the_others(api: Api, stream: bool) -> None:
    def script(request: GenerateRequest) -> Iterator[TokenChunk | Exception]:
        if request.request_id.endswith("-1"):
            yield RuntimeError("broken")
        for number in range(1000):
            yield TokenChunk(request.request_id, text="a", token_ids=[number])
        yield TokenChunk(request.request_id, finish_reason=FinishReason.STOP, usage=Usage(1, 1000, 0))

    api.engine.script = script
    response = await api.chat(stream=stream, n=3)
    if stream:  # the others had begun
        assert events(response.text)[0][-1]["error"]["code"] == "internal_error"
    else:
        assert response.status_code == 500
    assert api.engine.num_running == 0


async def test_c37_what_is_queued_is_handed_over_at_once() -> None:
    engine = ScriptedEngine(say(*"abcdef"), hold=4)
    request = GenerateRequest("r", [1], SamplingParams(), 0.0)
    async with aclosing(ChunkMerger([engine.open(request)])) as merger:
        assert [chunk.text for _, chunks in await merger.next_batch() for chunk in chunks] == ["a"]
        await engine.holding.wait()  # b, c and d have come meanwhile
        assert [chunk.text for _, chunks in await merger.next_batch() for chunk in chunks] == ["b", "c", "d"]
    assert engine.num_running == 0

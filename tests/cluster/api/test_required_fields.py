"""Keys that strict clients require stand in every kind of answer, also where their value is null (33b)."""

from typing import Any

import pytest

from tests.cluster.api.live_server import LiveServer
from tests.cluster.openai_schema import check

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEAD = {"id", "object", "created", "model", "choices", "system_fingerprint"}
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"}
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = [{"role": "user", "content": "hello"}]
WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
CHATS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"n": 2, "logprobs": True, "top_logprobs": 2},
    {"n": 2, "tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
    {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60, "logprobs": True},
    {"response_format": {"type": "json_object"}},
    {"stop": "e"},
]
COMPLETED: list[dict[str, Any]] = [{}, {"n": 3}, {"n": 2, "logprobs": 2}, {"echo": True, "logprobs": 1}]


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_33b_a_chat_has_every_required_field(live: LiveServer, fields: dict[str, Any]) -> None:
    answer = live.post(CHAT, messages=MESSAGES, **{"max_tokens": 12, "seed": 5, **fields})
    check("CreateChatCompletionResponse", answer)
    assert set(answer) == HEAD | {"usage"}
    assert set(answer["usage"]) == USAGE
    assert len(answer["choices"]) == fields.get("n", 1)
    for choice in answer["choices"]:
        assert set(choice) == {"index", "message", "logprobs", "finish_reason"}
        called = {"tool_calls"} if choice["message"].get("tool_calls") else set()
        assert set(choice["message"]) == {"role", "content", "refusal"} | called
        assert choice["message"]["refusal"] is None
        assert choice["finish_reason"] in ("stop", "length", "tool_calls")
        for call in choice["message"].get("tool_calls", ()):
            assert (set(call), set(call["function"])) == ({"id", "type", "function"}, {"name", "arguments"})
        check_chat_logprobs(choice["logprobs"], fields.get("logprobs", False))


def check_chat_logprobs(logprobs: Any, wanted: bool) -> None:
    assert (logprobs is not None) == wanted
    if wanted:
        assert set(logprobs) == {"content", "refusal"}
        for entry in logprobs["content"]:
            assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}


@pytest.mark.parametrize("fields", CHATS, ids=str)
def test_33b_a_streamed_chat_has_every_required_field(live: LiveServer, fields: dict[str, Any]) -> None:
    chunks = live.events(CHAT, messages=MESSAGES, **WITH_USAGE, **{"max_tokens": 12, "seed": 5, **fields})
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", chunk)
        assert set(chunk) == HEAD | {"usage"}
    *parts, last = chunks
    assert (last["choices"], set(last["usage"])) == ([], USAGE)
    begun: set[int] = set()
    for choice in (choice for chunk in parts for choice in chunk["choices"]):
        assert set(choice) == {"index", "delta", "logprobs", "finish_reason"}
        if choice["index"] not in begun:  # the first of each choice
            assert {"role", "content", "refusal"} <= set(choice["delta"])
            begun.add(choice["index"])
        for piece in choice["delta"].get("tool_calls", ()):
            assert {"index", "function"} <= set(piece)
    assert begun == set(range(fields.get("n", 1)))


@pytest.mark.parametrize("fields", COMPLETED, ids=str)
def test_33b_a_completion_has_every_required_field(live: LiveServer, fields: dict[str, Any]) -> None:
    answer = live.complete("hello", max_tokens=8, seed=5, **fields)
    check("CreateCompletionResponse", answer)
    assert set(answer) == HEAD | {"usage"}
    chunks = live.events(COMPLETIONS, prompt="hello", max_tokens=8, seed=5, **WITH_USAGE, **fields)
    for chunk in chunks:
        check("CompletionChunk", chunk)
        assert set(chunk) >= HEAD
    for choice in (choice for each in (answer, *chunks) for choice in each["choices"]):
        assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
        if choice["logprobs"] is not None:
            assert set(choice["logprobs"]) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}

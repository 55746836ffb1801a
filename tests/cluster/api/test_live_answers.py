"""Answers of a real engine: logprobs, echo, structured output and tool calls, whole and streamed, by the schema."""

import json
from typing import Any

import pytest

from tests.cluster.api.live_server import MODEL, WINDOW, LiveServer
from tests.cluster.openai_schema import check
from tests.cluster.text.small_tokenizer import CONTROL_TOKENS

TEXT = "the quick 😀 世界 ďábelské e\u0301 fox"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Tells.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop_all"}},
]


def streamed(live: LiveServer, path: str, **body: Any) -> list[dict[str, Any]]:
    chunks = live.events(path, **body)
    schema = "CreateChatCompletionStreamResponse" if "chat" in path else "CompletionChunk"
    for chunk in chunks:
        check(schema, chunk)
    return [choice for chunk in chunks for choice in chunk["choices"]]


def joined_logprobs(choices: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The lists of all events of a streamed completion, one after the other."""
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    return {name: [item for part in parts for item in part[name]] for name in parts[0]}


def test_chat_logprobs_have_one_entry_per_token(live: LiveServer) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 12, "temperature": 0}
    answer = live.chat("hello", **fields)
    check("CreateChatCompletionResponse", answer)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == answer["usage"]["completion_tokens"]
    for entry in entries:
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0  # greedy
        assert len(entry["top_logprobs"]) == 3
    messages = [{"role": "user", "content": "hello"}]
    choices = streamed(live, "/v1/chat/completions", messages=messages, **fields)
    told = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["token"] for entry in told] == [entry["token"] for entry in entries]
    written = b"".join(bytes(entry["bytes"]) for entry in told if entry["token"] not in CONTROL_TOKENS)
    assert written.decode(errors="replace") == answer["choices"][0]["message"]["content"]


def test_chat_without_top_logprobs_tells_the_token_alone(live: LiveServer) -> None:
    answer = live.chat("hello", logprobs=True, max_tokens=2)
    check("CreateChatCompletionResponse", answer)
    assert all(entry["top_logprobs"] == [] for entry in answer["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("prompt", [TEXT, "a", list(range(300, 330)), "<|im_start|>user\nhi<|im_end|>"], ids=repr)
def test_6_12_38_echo_with_logprobs_streamed_and_not(live: LiveServer, prompt: Any, max_tokens: int) -> None:
    fields = {"echo": True, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0}
    answer = live.complete(prompt, **fields)
    check("CreateCompletionResponse", answer)
    choice, usage = answer["choices"][0], answer["usage"]
    logprobs = choice["logprobs"]
    sizes = {name: len(values) for name, values in logprobs.items()}
    assert set(sizes.values()) == {usage["prompt_tokens"] + usage["completion_tokens"]}, sizes
    assert usage["completion_tokens"] <= max_tokens
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert all(value is not None for value in logprobs["token_logprobs"][1:])
    text = choice["text"]
    if isinstance(prompt, str):
        assert text.startswith(prompt)
        assert "\ufffd" not in text[: len(prompt)]
    if max_tokens == 0:
        assert choice["finish_reason"] == "length"
        assert isinstance(prompt, list) or text == prompt
    check_offsets(logprobs, text)
    choices = streamed(live, "/v1/completions", prompt=prompt, **fields)
    assert "".join(each["text"] for each in choices) == text
    assert joined_logprobs(choices) == logprobs


def check_offsets(logprobs: dict[str, list[Any]], text: str) -> None:
    """Each token that is text by itself stands in the answer at its offset; offsets never fall."""
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        if not token.startswith("bytes:") and token not in CONTROL_TOKENS:
            assert text[offset : offset + len(token)] == token


def test_12_a_prompt_that_fills_the_window_is_scored(live: LiveServer) -> None:
    prompt = [300 + position % 50 for position in range(WINDOW)]
    answer = live.complete(prompt, max_tokens=0, echo=True, logprobs=1)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (WINDOW, 0)
    assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == WINDOW
    response = live.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_c43_a_warm_cache_changes_no_logprob_of_the_prompt(live: LiveServer) -> None:
    prompt = "you are a helpful assistant. " * 6
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    cold = live.complete(prompt, **fields)
    assert live.complete(prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    warm = live.complete(prompt, **fields)
    assert warm["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["choices"] == cold["choices"]


def test_37_echo_and_logprobs_of_several_prompts(live: LiveServer) -> None:
    prompts = ["one fox", "two lazy dogs jump", "three"]
    answer = live.complete(prompts, n=2, echo=True, logprobs=1, max_tokens=6, seed=3)
    check("CreateCompletionResponse", answer)
    for index, choice in enumerate(answer["choices"]):
        assert choice["text"].startswith(prompts[index // 2])
        check_offsets(choice["logprobs"], choice["text"])


@pytest.mark.parametrize(
    ("response_format", "is_right"),
    [
        ({"type": "json_object"}, lambda value: isinstance(value, dict)),
        (
            {"type": "json_schema", "json_schema": {"name": "trip", "strict": True, "schema": SCHEMA}},
            lambda value: value["city"] in ("Oslo", "Rome") and 1 <= value["days"] <= 9,
        ),
    ],
    ids=["json_object", "json_schema"],
)
def test_structured_output(live: LiveServer, response_format: Any, is_right: Any) -> None:
    answer = live.chat("plan a trip", response_format=response_format, max_tokens=400, seed=1, logit_bias={"93": 5})
    check("CreateChatCompletionResponse", answer)
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        assert is_right(json.loads(choice["message"]["content"]))
    else:  # a random model may talk to the limit within its strings
        assert response_format["type"] == "json_object"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"]
)
@pytest.mark.parametrize("parallel", [True, False])
def test_tool_calls_whole_and_streamed(live: LiveServer, choice: Any, parallel: bool) -> None:
    fields = {
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
        "temperature": 0,
        "max_tokens": 150,
    }
    answer = live.chat("weather?", **fields)
    check("CreateChatCompletionResponse", answer)
    calls = answer["choices"][0]["message"]["tool_calls"]
    is_one = not parallel or isinstance(choice, dict)
    assert len(calls) == 1 or not is_one
    reason = "stop" if isinstance(choice, dict) else "tool_calls"
    assert answer["choices"][0]["finish_reason"] in ([reason] if is_one else [reason, "length"])
    assert answer["choices"][0]["message"]["content"] is None
    functions = [call["function"] for call in calls]
    for function in functions[:-1] if answer["choices"][0]["finish_reason"] == "length" else functions:
        arguments = json.loads(function["arguments"])
        assert arguments == {} if function["name"] == "stop_all" else arguments["city"] in ("Oslo", "Rome")
        assert isinstance(choice, str) or function["name"] == "get_weather"
    messages = [{"role": "user", "content": "weather?"}]
    choices = streamed(live, "/v1/chat/completions", messages=messages, **fields)
    assert choices[-1]["finish_reason"] == answer["choices"][0]["finish_reason"]
    deltas = [each["delta"] for each in choices]
    assert not any(delta.get("content") for delta in deltas)
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert len({piece["id"] for piece in pieces if "id" in piece}) == len(calls)
    for index, function in enumerate(functions):
        mine = [piece["function"] for piece in pieces if piece["index"] == index]
        assert mine[0]["name"] == function["name"]
        assert "".join(piece["arguments"] for piece in mine) == function["arguments"]


@pytest.mark.parametrize("max_tokens", [5, 30], ids=["before its arguments", "within them"])
def test_a_call_that_is_cut_is_no_content_whole_and_streamed(live: LiveServer, max_tokens: int) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 0, "max_tokens": max_tokens}
    choice = live.chat("weather?", **fields)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["content"]
    messages = [{"role": "user", "content": "weather?"}]
    choices = streamed(live, "/v1/chat/completions", messages=messages, **fields)
    assert "".join(each["delta"].get("content") or "" for each in choices) == ""
    pieces = [piece for each in choices for piece in each["delta"].get("tool_calls", ())]
    called = "".join(piece["function"]["arguments"] for piece in pieces)
    assert called == "".join(call["function"]["arguments"] for call in choice["message"].get("tool_calls", ()))


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": TOOLS, "tool_choice": "required"}, {"response_format": {"type": "json_object"}}, {"logprobs": True}],
    ids=["plain", "tools", "json_object", "logprobs"],
)
def test_12_a_chat_answer_of_no_tokens(live: LiveServer, fields: dict[str, Any]) -> None:
    answer = live.chat("hello", max_tokens=0, **fields)
    check("CreateChatCompletionResponse", answer)
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    assert answer["usage"]["completion_tokens"] == 0
    messages = [{"role": "user", "content": "hello"}]
    (event,) = streamed(live, "/v1/chat/completions", messages=messages, max_tokens=0, **fields)
    assert (event["delta"]["content"], event["finish_reason"]) == ("", "length")


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_tools_that_need_not_be_called(live: LiveServer, choice: str) -> None:
    answer = live.chat("hello", tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=8)
    check("CreateChatCompletionResponse", answer)
    message = answer["choices"][0]["message"]
    assert "tool_calls" not in message
    assert message["content"]
    without = live.chat("hello", temperature=0, max_tokens=8)
    assert (answer["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]) is (choice == "none")

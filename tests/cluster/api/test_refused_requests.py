"""What a client did wrong is a 400 that names the field, in the official form, and never reaches an engine."""

from typing import Any

import httpx
import pytest

from cluster.api.failures import from_exception
from cluster.text.tokenization import ChatTokenizer
from tests.cluster.api.conftest import WINDOW, Api
from tests.cluster.openai_schema import check

JSON = {"content-type": "application/json"}


def refused(api: Api, response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refusal; checks that it has the official form and that no engine saw the request."""
    assert response.status_code == status, response.text
    check("ErrorResponse", response.json())
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert api.engine.requests == []
    assert [from_exception(error).status for error in api.failures] == [status]
    return error


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b'{"model":"small", x}',
        b"[]",
        b'"str"',
        b"null",
        b"7",
        b"{",
        b"\xff\xfe",
        b'{"a":"\\ud800"}',
        b"[" * 9999,
    ],
    ids=["empty", "blank", "malformed", "array", "string", "null", "number", "cut", "no UTF-8", "surrogate", "deep"],
)
async def test_16_bodies_that_are_no_json_object(api: Api, path: str, body: bytes) -> None:
    refused(api, await api.client.post(path, content=body, headers=JSON))


async def test_16_another_content_type(api: Api) -> None:
    body = b'{"model":"small","prompt":"a"}'
    headers = {"content-type": "application/x-www-form-urlencoded"}
    error = refused(api, await api.client.post("/v1/completions", content=body, headers=headers))
    assert "application/json" in error["message"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate"])
async def test_16_an_encoded_body(api: Api, encoding: str) -> None:
    headers = JSON | {"content-encoding": encoding}
    response = await api.client.post("/v1/completions", content=b'{"model":"small","prompt":"a"}', headers=headers)
    assert response.status_code == 415
    assert encoding in response.json()["error"]["message"]
    assert api.engine.requests == []


@pytest.mark.parametrize("path", ["/tokenize/", "/v1/chat/completions/", "/health/live/"])
async def test_33b_a_path_with_a_slash_too_many_leads_nowhere_else(api: Api, path: str) -> None:
    """A redirect would name whatever host the client named."""
    response = await api.client.post(path, json={}, headers={"host": "elsewhere.example"})
    assert response.status_code == 404
    check("ErrorResponse", response.json())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "1"), ("temperature", True), ("top_p", 0),
        ("top_p", 1.5), ("top_k", -2), ("top_k", 1.5), ("n", 0), ("n", 129), ("n", 100_000), ("n", "2"), ("n", 1.0),
        ("max_tokens", -1), ("max_tokens", 2**40), ("seed", 2**63), ("seed", "1"), ("stream", "yes"),
        ("stream", 1), ("stop", ""), ("stop", ["a", ""]), ("stop", 3), ("stop", [3]), ("stop", ["a"] * 17),
        ("stop", {"a": 1}), ("stop_token_ids", [-3]), ("stop_token_ids", [512]), ("stop_token_ids", ["1"]),
        ("cache_salt", ""), ("cache_salt", "s" * 257), ("cache_salt", 3), ("ignore_eos", "true"), ("model", 3),
        ("stream_options", {}), ("stream_options", {"include_usage": True}), ("stream_options", 3),
    ],
)  # fmt: skip
async def test_10_16_18_19_32_values_out_of_bounds_or_of_the_wrong_type(api: Api, field: str, value: Any) -> None:
    for call in (api.chat, api.complete):
        error = refused(api, await call(**{field: value}))
        assert error["param"].split("[")[0] == field
        api.failures.clear()


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({}, "id"),
        ({**CALL, "id": 1}, "id"),
        ({"id": "1", "function": CALL["function"]}, "type"),
        ({**CALL, "type": "custom"}, "type"),
        ({"id": "1", "type": "function"}, "function"),
        ({**CALL, "function": None}, "function"),
        ({**CALL, "function": "x"}, "function"),
        ({**CALL, "function": {"arguments": "{}"}}, "function.name"),
        ({**CALL, "function": {"name": 3, "arguments": "{}"}}, "function.name"),
        ({**CALL, "function": {"name": "f"}}, "function.arguments"),
        ({**CALL, "function": {"name": "f", "arguments": 3}}, "function.arguments"),
    ],
)
async def test_16_calls_of_earlier_messages_that_are_none(api: Api, call: dict[str, Any], param: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    error = refused(api, await api.client.post("/v1/chat/completions", json={"model": "small", "messages": messages}))
    assert error["param"].startswith(f"messages[1].tool_calls[0].{param}")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p"])
async def test_18_numbers_that_are_not_finite(api: Api, field: str, number: str) -> None:
    body = f'{{"model":"small","prompt":"a","{field}":{number}}}'
    error = refused(api, await api.client.post("/v1/completions", content=body, headers=JSON))
    assert error["param"] == field


async def test_18_a_tiny_temperature_is_served(api: Api) -> None:
    assert (await api.complete(temperature=1e-5)).status_code == 200
    assert api.engine.requests[0].sampling.greedy


@pytest.mark.parametrize(
    "prompt", ["", [""], [], [[]], ["a", ""], [[1], []], None, 3, {}, [1, "a"], [[1], "a"], [True], [1.5]]
)
async def test_11_prompts_that_are_empty_or_no_prompts(api: Api, prompt: Any) -> None:
    assert refused(api, await api.complete(prompt))["param"] == "prompt"


@pytest.mark.parametrize("prompt", [[-1], [512], [999_999], [2**70], [[1, 2], [3, 512]]])
async def test_19_token_ids_outside_the_vocabulary(api: Api, prompt: Any) -> None:
    error = refused(api, await api.complete(prompt))
    assert error["param"] == "prompt"
    assert "between 0 and 511" in error["message"]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": {}}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content"),
        ({"role": "user", "content": ["text"]}, "messages[1].content"),
        ({"role": "tool", "content": None, "tool_call_id": "call_1"}, "messages[1].content"),
        ({"role": "tool", "content": "a"}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": "a", "tool_call_id": None}, "messages[1].tool_call_id"),
        ({"role": "function", "content": "a"}, "messages[1].name"),
        ({"role": "robot", "content": "a"}, "messages[1].role"),
        ({"content": "a"}, "messages[1].role"),
        ("hello", "messages[1]"),
    ],
)
async def test_20_the_bad_message_is_named(api: Api, message: Any, param: str) -> None:
    messages = [{"role": "system", "content": "s"}, message]
    body = {"model": "small", "messages": messages}
    assert refused(api, await api.client.post("/v1/chat/completions", json=body))["param"] == param


@pytest.mark.parametrize("messages", [[], None, "hello", {}])
async def test_20_no_messages(api: Api, messages: Any) -> None:
    body = {"model": "small", "messages": messages}
    assert refused(api, await api.client.post("/v1/chat/completions", json=body))["param"] == "messages"


async def test_20_what_the_template_refuses(api: Api) -> None:
    body = {"model": "small", "messages": [{"role": "function", "name": "f", "content": "x"}]}
    error = refused(api, await api.client.post("/v1/chat/completions", json=body))
    assert error["param"] == "messages"
    assert "no functions here" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_14_a_prompt_beyond_the_window(api: Api, stream: bool) -> None:
    for call, prompt in ((api.chat, "a " * 600), (api.complete, [1] * (WINDOW + 1))):
        response = await call(prompt, stream=stream)
        assert response.headers["content-type"] == "application/json"
        error = refused(api, response)
        assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
        assert str(WINDOW) in error["message"]
        api.failures.clear()
    assert f"has {WINDOW + 1} tokens" in error["message"]


async def test_14_a_prompt_that_fills_the_window_leaves_no_room_for_an_answer(api: Api) -> None:
    for fields, param in (({"max_tokens": 1}, "max_tokens"), ({}, "prompt"), ({"echo": True}, "prompt")):
        error = refused(api, await api.complete([1] * WINDOW, **fields))
        assert (error["param"], error["code"]) == (param, "context_length_exceeded")
        api.failures.clear()
    assert (await api.complete([1] * WINDOW, max_tokens=0)).status_code == 200
    assert (await api.complete([1] * (WINDOW - 1))).status_code == 200
    assert [request.sampling.max_tokens for request in api.engine.requests] == [0, 1]


async def test_14_a_chat_that_fills_the_window(api: Api) -> None:
    async def num_tokens(num_letters: int) -> int:
        messages = [{"role": "user", "content": "~" * num_letters}]
        return int((await api.client.post("/tokenize", json={"messages": messages})).json()["count"])

    num_letters = WINDOW - await num_tokens(0)
    assert await num_tokens(num_letters) == WINDOW
    error = refused(api, await api.chat("~" * num_letters))
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert (await api.chat("~" * (num_letters - 1))).status_code == 200
    for limit in ("max_tokens", "max_completion_tokens"):
        assert (await api.chat("~" * num_letters, **{limit: 0})).status_code == 200
    assert [request.sampling.max_tokens for request in api.engine.requests] == [1, 0, 0]


async def test_57_a_hopeless_prompt_is_refused_unread(
    api: Api, tokenizer: ChatTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of ids are not validated one by one, and megabytes of text are not tokenised."""

    async def tokenise(*args: Any) -> list[int]:
        raise RuntimeError("it was tokenised")

    monkeypatch.setattr(tokenizer, "encode", tokenise)
    monkeypatch.setattr(tokenizer, "encode_chat", tokenise)
    wrong_at_the_end = [1] * 15_000 + ["no id"]
    words = "word " * 10_000
    for call, prompt in (
        (api.complete, wrong_at_the_end),
        (api.complete, [[1], wrong_at_the_end]),
        (api.complete, words),
        (api.chat, words),
    ):
        assert refused(api, await call(prompt))["code"] == "context_length_exceeded"
        api.failures.clear()


async def test_15_an_answer_that_does_not_fit_behind_the_prompt(api: Api) -> None:
    error = refused(api, await api.complete([1] * 200, max_tokens=57))
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")
    assert str(WINDOW) in error["message"]
    assert "257 tokens (200 in the prompt, 57 in the answer)" in error["message"]
    assert (await api.complete([1] * 200, max_tokens=56)).status_code == 200


async def test_the_default_limit_of_completions_is_cut_to_the_window(api: Api) -> None:
    assert (await api.complete([1] * 250)).status_code == 200
    assert (await api.complete([1])).status_code == 200
    assert [request.sampling.max_tokens for request in api.engine.requests] == [6, 16]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_logprobs": 2}, {"tool_choice": "required"}, {"logit_bias": {"60000": 5}}, {"modalities": ["audio"]},
        {"reasoning_effort": "low"}, {"functions": [{"name": "f"}]}, {"max_token": 5},
        {"audio": {"voice": "a", "format": "wav"}},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
async def test_19_fields_of_chat_that_would_change_the_answer(api: Api, fields: dict[str, Any]) -> None:
    assert refused(api, await api.chat(**fields))["param"] == next(iter(fields))


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "x"}, {"best_of": 3}, {"tools": []}, {"response_format": {"type": "text"}}],
    ids=lambda fields: next(iter(fields)),
)
async def test_fields_of_completions_that_would_change_the_answer(api: Api, fields: dict[str, Any]) -> None:
    assert refused(api, await api.complete(**fields))["param"] == next(iter(fields))


TOOL = {"type": "function", "function": {"name": "stop_all"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strng"}}}},
         "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}},
         "response_format.json_schema.schema"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#"}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{"$ref": "#"}]}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 3}}}]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"min_tokens": 9, "max_tokens": 4}, "min_tokens"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"512": 1}}, "logit_bias"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_19_what_cannot_be_served_names_the_field(api: Api, fields: dict[str, Any], param: str) -> None:
    assert refused(api, await api.chat(**fields))["param"] == param


async def test_two_different_limits(api: Api) -> None:
    assert refused(api, await api.chat(max_tokens=3, max_completion_tokens=4))["param"] == "max_completion_tokens"


async def test_unknown_model(api: Api) -> None:
    error = refused(api, await api.chat(model="gpt-4"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_missing_model(api: Api) -> None:
    response = await api.client.post("/v1/completions", json={"prompt": "a"})
    assert refused(api, response)["param"] == "model"


async def test_57_too_many_answers(api: Api) -> None:
    assert refused(api, await api.complete(["a"] * 9, n=2))["param"] == "n"
    api.failures.clear()
    assert refused(api, await api.complete(["a"] * 17))["param"] == "prompt"


async def test_57_a_body_beyond_the_limit(api: Api) -> None:
    refused(api, await api.complete("x" * 70_000), 413)


async def test_57_a_chunked_body_beyond_the_limit_is_not_read_to_its_end(api: Api) -> None:
    num_parts = 0

    async def parts():
        nonlocal num_parts
        for _ in range(1000):
            num_parts += 1
            yield b"x" * 1024

    refused(api, await api.client.post("/v1/completions", content=parts(), headers=JSON), 413)
    assert num_parts == 65


async def test_unknown_paths_and_methods_have_the_official_form(api: Api) -> None:
    for response, status in ((await api.client.get("/v2"), 404), (await api.client.get("/v1/completions"), 405)):
        assert response.status_code == status
        check("ErrorResponse", response.json())


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d"}', '"\\udc00"', '["\\ud83d\\ud83d"]', '{"\\ud800": 1}'])
async def test_14_half_of_a_surrogate_pair_in_an_earlier_calls_arguments_is_text(api: Api, arguments: str) -> None:
    """Python's json reads it, and no tokenizer takes what comes out: it was a 500."""
    function = {"name": "f", "arguments": arguments}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    body = {"model": "small", "messages": messages}
    for path in ("/v1/chat/completions", "/tokenize"):
        response = await api.client.post(path, json=body)
        assert response.status_code == 200, response.text

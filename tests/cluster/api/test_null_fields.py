"""Fields and schema keywords that are null are as if they were not there: many clients write every field they know."""

import copy
from typing import Any

import pytest

from cluster.api.chat_request import ChatCompletionRequest
from cluster.api.completion_request import CompletionRequest
from cluster.api.json_schema import problem_of, without_nulls
from cluster.api.unsupported_fields import CHAT_NEUTRAL, COMPLETION_NEUTRAL, HARMLESS
from tests.cluster.api.conftest import Api

KEYWORDS = [
    "$anchor", "$comment", "$defs", "$id", "$ref", "$schema", "additionalItems", "additionalProperties", "allOf",
    "anyOf", "contains", "definitions", "dependentRequired", "dependentSchemas", "deprecated", "description", "else",
    "enum", "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "if", "items", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf",
    "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "readOnly", "required", "then",
    "title", "type", "unevaluatedProperties", "uniqueItems", "nullable", "discriminator",
]  # fmt: skip
PLAIN: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}}},
    "required": ["city"],
}


def bodies(schema: Any, strict: bool | None = None) -> list[dict[str, Any]]:
    """The schema as a tool's parameters and as what the answer must be."""
    function = {"name": "f", "parameters": schema, "strict": strict}
    answer_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}
    return [{"tools": [{"type": "function", "function": function}]}, {"response_format": answer_format}]


def grammars(schema: Any, strict: bool | None) -> list[str]:
    found = []
    for body in bodies(schema, strict):
        messages = [{"role": "user", "content": "a"}]
        grammar = ChatCompletionRequest.model_validate({"model": "m", "messages": messages, **body}).grammar
        assert grammar is not None
        assert problem_of(grammar) == ""
        found.append(grammar)
    return found


@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_that_is_null_is_absent(keyword: str, strict: bool | None) -> None:
    outer = {**PLAIN, **({} if keyword in PLAIN else {keyword: None})}
    inner = copy.deepcopy(PLAIN)
    inner["properties"]["city"] = {**inner["properties"]["city"], **({} if keyword == "type" else {keyword: None})}
    deep = copy.deepcopy(PLAIN)
    deep["properties"]["list"]["items"] = {keyword: None, **deep["properties"]["list"]["items"]}
    plain = grammars(PLAIN, strict)
    for schema in (outer, inner, deep):
        assert grammars(schema, strict) == plain
    if keyword in PLAIN:
        without = {name: value for name, value in PLAIN.items() if name != keyword}
        assert grammars({**PLAIN, keyword: None}, None) == grammars(without, None)


@pytest.mark.parametrize(
    ("schema", "cleaned"),
    [
        ({"const": None}, {"const": None}),
        ({"type": ["string", "null"], "const": None}, {"type": ["string", "null"], "const": None}),
        ({"type": "string", "const": None, "enum": None}, {"type": "string"}),
        ({"enum": [None, "a"], "default": None}, {"enum": [None, "a"], "default": None}),
        ({"properties": {"a": None, "required": {"required": None}}}, {"properties": {"a": {}, "required": {}}}),
        ({"$defs": {"a": {"anyOf": [{"items": None}]}}}, {"$defs": {"a": {"anyOf": [{}]}}}),
        ({"const": {"required": None}}, {"const": {"required": None}}),
    ],
)
def test_null_as_a_value_stays(schema: dict[str, Any], cleaned: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    assert without_nulls(schema) == cleaned
    assert schema == before


BAD_SCHEMAS: list[Any] = [
    {"type": "strng"}, {"required": "x"}, {"properties": []}, {"enum": "x"}, {"items": 5}, {"anyOf": [None]},
    {"type": "string", "minLength": 9, "maxLength": 3}, {"$ref": "#/nowhere"},
    {"pattern": 3}, {"minimum": "x", "type": "number"}, {"additionalProperties": 3},
]  # fmt: skip
STRICTLY_BAD: list[Any] = [
    {"type": "string", "pattern": "(?=a)b"}, {"type": "string", "format": "bogus"}, {"not": {"type": "string"}},
    {"multipleOf": 0, "type": "integer"}, {"type": "array", "uniqueItems": True},
    {"type": "string", "maxLength": 10**12},
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "strict"),
    [*((schema, None) for schema in BAD_SCHEMAS), *((schema, True) for schema in BAD_SCHEMAS + STRICTLY_BAD)],
    ids=str,
)
async def test_no_message_quotes_what_is_made_of_a_schema(api: Api, schema: Any, strict: bool | None) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    other = {"type": "function", "function": {"name": "other", "parameters": PLAIN}}
    for body in bodies(whole, strict):
        body = {**body, **({"tools": [other, *body["tools"]]} if "tools" in body else {})}
        response = await api.chat(**body)
        assert response.status_code == 400, response.text
        message = response.json()["error"]["message"]
        assert response.json()["error"]["param"] in ("tools", "response_format")
        for inner in ("%json", "x-guidance", "start:", "arguments_", "call_", " | ", "at 1(", "^^"):
            assert inner not in message


@pytest.mark.parametrize("field", sorted({*ChatCompletionRequest.model_fields, *CHAT_NEUTRAL, *HARMLESS}))
async def test_every_field_of_a_chat_may_be_null(api: Api, field: str) -> None:
    if field not in ("model", "messages"):
        assert (await api.chat(**{field: None})).status_code == 200


@pytest.mark.parametrize("field", sorted({*CompletionRequest.model_fields, *COMPLETION_NEUTRAL, *HARMLESS}))
async def test_every_field_of_a_completion_may_be_null(api: Api, field: str) -> None:
    if field not in ("model", "prompt"):
        assert (await api.complete(**{field: None})).status_code == 200


async def test_every_field_of_tokenize_may_be_null(api: Api) -> None:
    fields = {"model": None, "messages": None, "add_special_tokens": None, "return_token_strs": None}
    response = await api.client.post("/tokenize", json={"prompt": "hello", **fields})
    assert response.status_code == 200, response.text
    plain = await api.client.post("/tokenize", json={"prompt": "hello"})
    assert response.json() == plain.json()


NESTED: list[dict[str, Any]] = [
    {"stream": True, "stream_options": {"include_usage": None}},
    {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": None, "strict": None}}],
        "tool_choice": "none",
    },
    {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
    {"response_format": {"type": "text", "json_schema": None}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "name": None, "strict": None}}},
]


@pytest.mark.parametrize("fields", NESTED, ids=str)
async def test_fields_within_fields_may_be_null(api: Api, fields: dict[str, Any]) -> None:
    response = await api.chat(**fields)
    assert response.status_code == 200, response.text


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NOTHING = {"name": None, "tool_call_id": None, "refusal": None, "audio": None, "function_call": None}


@pytest.mark.parametrize("content", [[], None, "", [{"type": "text", "text": ""}], "absent"], ids=str)
@pytest.mark.parametrize("calls", [[CALL], None, []], ids=["calls", "null", "none"])
async def test_20_an_assistants_turn_may_have_no_content(api: Api, content: Any, calls: Any) -> None:
    said = {} if content == "absent" else {"content": content}
    turn = {"role": "assistant", "tool_calls": calls, **NOTHING, **said}
    messages = [{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}]
    response = await api.client.post("/v1/chat/completions", json={"model": "small", "messages": messages})
    assert response.status_code == 200, response.text
    plain = [messages[0], {**turn, "content": ""}, messages[2]]
    await api.client.post("/v1/chat/completions", json={"model": "small", "messages": plain})
    assert api.engine.requests[0].token_ids == api.engine.requests[1].token_ids


@pytest.mark.parametrize("content", [[], "", [{"type": "text", "text": ""}]], ids=str)
async def test_20_a_tool_may_have_given_nothing(api: Api, content: Any) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [], "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": content},
    ]
    response = await api.client.post("/v1/chat/completions", json={"model": "small", "messages": messages})
    assert response.status_code == 200, response.text

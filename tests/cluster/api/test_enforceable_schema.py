"""Schemas that cannot be enforced in full: the rest is, unless strict is asked for."""

import json
from typing import Any

import pytest

from cluster.api.chat_request import ChatCompletionRequest
from cluster.api.json_schema import as_grammar, problem_of

LOOK_AHEAD = {"type": "string", "pattern": "(?=a)b"}


def kept(schema: dict[str, Any]) -> dict[str, Any]:
    grammar = as_grammar(schema, strict=False)
    assert problem_of(f"start: {grammar}") == ""
    found: dict[str, Any] = json.loads(grammar.removeprefix("%json "))
    del found["x-guidance"]
    return found


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        (LOOK_AHEAD, {"type": "string"}),
        ({"type": "string", "pattern": "(a)\\1", "maxLength": 9}, {"type": "string", "maxLength": 9}),
        ({"type": "string", "maxLength": 10**12}, {"type": "string"}),
        ({"type": "integer", "minimum": 10**30}, {"type": "integer"}),
        ({"type": "number", "multipleOf": 1e-30}, {"type": "number"}),
        (
            {"type": "object", "properties": {"a": LOOK_AHEAD, "b": {"pattern": "x"}, "pattern": {"type": "null"}}},
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"pattern": "x"}, "pattern": {"type": "null"}}},  # noqa: E501
        ),
        ({"anyOf": [LOOK_AHEAD, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"patternProperties": {"(?=a)": {}}, "additionalProperties": False}, {}),
        ({"$ref": "#/$defs/a", "$defs": {"a": LOOK_AHEAD}}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}),
        ({"const": LOOK_AHEAD}, {"const": LOOK_AHEAD}),
        ({"type": "string", "maxLength": 3}, {"type": "string", "maxLength": 3}),
    ],
)  # fmt: skip
def test_only_what_cannot_be_enforced_is_dropped(schema: dict[str, Any], left: dict[str, Any]) -> None:
    assert kept(schema) == left


@pytest.mark.parametrize(
    "schema",
    [{"type": "strng"}, {"maxLength": "x"}, {"pattern": 3}, {"minLength": 5, "maxLength": 3, "type": "string"}],
)
def test_mistakes_and_contradictions_stay(schema: dict[str, Any]) -> None:
    assert problem_of(f"start: {as_grammar(schema, strict=False)}")


def test_strict_drops_nothing_and_names_the_pattern() -> None:
    problem = problem_of(f"start: {as_grammar(LOOK_AHEAD, strict=True)}")
    assert "(?=a)b" in problem
    assert "look-ahead" in problem


@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("limit", [{"pattern": "(?=a)b"}, {"pattern": "(a)\\1"}, {"maxLength": 10**12}], ids=str)
def test_a_tool_and_an_answers_schema_are_held_to_it_only_when_strict(strict: Any, limit: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", **limit}}}
    function = {"name": "f", "parameters": schema, "strict": strict}
    answer_format = {"type": "json_schema", "json_schema": {"name": "x", "strict": strict, "schema": schema}}
    for fields in ({"response_format": answer_format}, {"tools": [{"type": "function", "function": function}]}):
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
        grammar = ChatCompletionRequest.model_validate(body).grammar
        assert grammar is not None
        problem = problem_of(grammar)
        assert str(limit.get("pattern", 10**12)) in problem if strict else problem == ""

"""References of JSON schemas that lead in a circle."""

from typing import Any

import pytest

from cluster.api.json_schema import circular_reference


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"$ref": "#"}, "#"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#/$defs/a"),
        ({"properties": {"p": {"$ref": "#/properties/p"}}}, "#/properties/p"),
        ({"items": [{"$ref": "#/items/0"}]}, "#/items/0"),
        ({"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}}, "#/$defs/a~1b"),
        ({"allOf": [{"$ref": "#"}]}, "#"),
        ({"allOf": [{"type": "object"}, {"$ref": "#"}]}, "#"),
        ({"anyOf": [{"$ref": "#"}]}, "#"),
        ({"oneOf": [{"$ref": "#"}]}, "#"),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, "#"),
        ({"$id": "https://example.org/s", "allOf": [{"$ref": "https://example.org/s"}]}, "https://example.org/s"),
        ({"$anchor": "a", "allOf": [{"$ref": "#a"}]}, "#a"),
        ({"$defs": {"a b": {"$ref": "#/$defs/a%20b"}}}, "#/$defs/a%20b"),
        (
            {
                "type": "object",
                "properties": {"p": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"oneOf": [{"$ref": "#/$defs/a"}]}},
            },
            "#/$defs/a",
        ),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, None),
        ({"anyOf": [{"$ref": "#"}, True]}, None),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "string"}]}, None),
        ({"allOf": [{"properties": {"child": {"$ref": "#"}}}]}, None),
        ({"const": {"$ref": "#/const"}}, None),
        ({"properties": {"child": {"$ref": "#"}}}, None),
        ({"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}}, None),
        ({"$ref": "#/$defs/none"}, None),
        ({"$ref": "https://example.org/schema"}, None),
        ({"properties": {"$ref": {"type": "string"}}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_only_a_name_for_itself_is_a_circle(schema: Any, found: str | None) -> None:
    assert circular_reference(schema) == found

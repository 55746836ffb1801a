"""References of JSON schemas that lead in a circle."""

from typing import Any

import pytest

from cluster.api.schema_references import circular_reference


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"$ref": "#"}, "#"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "#/$defs/a"),
        ({"properties": {"p": {"$ref": "#/properties/p"}}}, "#/properties/p"),
        ({"items": [{"$ref": "#/items/0"}]}, "#/items/0"),
        ({"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}}, "#/$defs/a~1b"),
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

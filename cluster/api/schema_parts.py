"""The parts of a JSON schema that are schemas themselves: values such as `const` and `default` are not looked into."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

_OF_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_OF_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
MAPS_OF_SCHEMAS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema itself and every object within it that is a schema, outer ones first."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        yield part
        waiting += [part[name] for name in _OF_ONE if name in part]
        for name in _OF_LISTS:
            if isinstance(part.get(name), list):
                waiting += part[name]
        for name in MAPS_OF_SCHEMAS:
            if isinstance(part.get(name), dict):
                waiting += part[name].values()


class References:
    """What each `$ref` of one schema leads to."""

    def __init__(self, schema: Any):
        self._schema = schema
        identity = schema.get("$id") if isinstance(schema, dict) else None
        self._identity = identity.rstrip("#") if isinstance(identity, str) else ""
        self._anchors = {
            part["$anchor"]: part for part in subschemas(schema) if isinstance(part.get("$anchor"), str)
        }  # fmt: skip

    def target(self, reference: str) -> Any:
        """None where it leads nowhere, or out of this schema."""
        base, _, place = reference.partition("#")
        if base and base != self._identity:
            return None
        place = unquote(place)
        return self._at(place) if place.startswith("/") or not place else self._anchors.get(place)

    def _at(self, pointer: str) -> Any:
        part = self._schema
        for name in pointer.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(part, dict):
                part = part.get(name)
            elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
                part = part[int(name)]
            else:
                return None
        return part

"""Which kinds of JSON values a parameter's schema allows, as far as its types tell.

In forms that write parameters one by one a string stands as it is and everything else as JSON, so a value can only be
read by its schema.
"""

import json
from collections.abc import Iterable
from typing import Any

from cluster.api.json_schema import References

ALL_KINDS = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_TEXT = frozenset({"string"})
_MAX_DEPTH = 100
"""Of references and parts within parts; what lies deeper tells nothing."""


def kinds_of(schema: Any, references: References) -> frozenset[str]:
    """A subset of ALL_KINDS; all of them where nothing tells."""
    return _Kinds(references).of(schema)


class _Kinds:
    """Looks at each part of a schema once, however often it is referred to."""

    def __init__(self, references: References):
        self._references = references
        self._known: dict[int, frozenset[str]] = {}
        self._depth = 0

    def of(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, dict) or self._depth > _MAX_DEPTH:
            return ALL_KINDS
        if id(schema) not in self._known:
            self._known[id(schema)] = ALL_KINDS  # what a part says of itself, while it is looked at
            self._depth += 1
            self._known[id(schema)] = self._found(schema) or ALL_KINDS
            self._depth -= 1
        return self._known[id(schema)]

    def _found(self, schema: dict[str, Any]) -> frozenset[str]:
        kinds = ALL_KINDS
        named = schema.get("type")
        if isinstance(named, str | list):
            kinds &= frozenset([named] if isinstance(named, str) else [each for each in named if isinstance(each, str)])
        if isinstance(schema.get("enum"), list):
            kinds &= _of_values(schema["enum"])
        if "const" in schema:
            kinds &= _of_values([schema["const"]])
        if isinstance(schema.get("$ref"), str):
            kinds &= self.of(self._references.target(schema["$ref"]))
        for name in ("anyOf", "oneOf"):
            if isinstance(schema.get(name), list) and schema[name]:
                kinds &= frozenset[str]().union(*map(self.of, schema[name]))
        for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            kinds &= self.of(part)
        return kinds


def is_text_alone(kinds: frozenset[str]) -> bool:
    return kinds == _TEXT


def json_of(text: str, kinds: frozenset[str]) -> str:
    """The JSON of a value as it was written. Where strings and others are allowed, what reads as one of the others is
    one."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, str) or not _of_values([value]) & kinds:
        return text.strip() if "string" not in kinds else json.dumps(text, ensure_ascii=False)
    return text.strip()


def _of_values(values: Iterable[Any]) -> frozenset[str]:
    return frozenset().union(*(_kinds_of_value(value) for value in values))


def _kinds_of_value(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"}) if value.is_integer() else frozenset({"number"})
        case str():
            return _TEXT
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")

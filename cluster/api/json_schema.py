"""JSON schemas of tools and response formats: what is absent, what refers only to itself, and what can be enforced."""

import copy
import json
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from cluster.api.sampling_fields import invalid
from replica.sampling.grammar_compiler import grammar_problem


def without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, in all its parts, without them. A named part that is null (a property, a definition) is one of
    which nothing is said. `default` may be null, and `const` where the type allows it."""
    cleaned = copy.deepcopy(schema)
    for part in list(subschemas(cleaned)):
        for name in [name for name, value in part.items() if value is None and not _means_null(part, name)]:
            del part[name]
        for name in MAPS_OF_SCHEMAS:
            if isinstance(part.get(name), dict):
                part[name] = {key: {} if value is None else value for key, value in part[name].items()}
    return cleaned


def _means_null(part: dict[str, Any], name: str) -> bool:
    if name != "const":
        return name == "default"
    kinds = part.get("type")
    return kinds is None or kinds == "null" or (isinstance(kinds, list) and "null" in kinds)


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


def check_references(schema: Any) -> None:
    """Raises PydanticCustomError."""
    reference = circular_reference(schema)
    if reference is not None:
        raise invalid(f"the reference {reference[:100]!r} is another name for itself, so that nothing matches it")


def circular_reference(schema: Any) -> str | None:
    """A `$ref` that needs itself to match before any of the value is read: no value could ever match it.

    So it is where it is another name for itself, over other references, `allOf`, or every branch of an `anyOf` or a
    `oneOf`. A recursion through properties or items reads some of the value each time round and is none.
    """
    references = References(schema)
    matching = _Matching(schema, references)
    for part in subschemas(schema):
        if isinstance(part.get("$ref"), str) and not matching.is_possible(references.target(part["$ref"])):
            return part["$ref"]
    return None


class _Matching:
    """Which parts of a schema something can match, as far as circles are concerned.

    A part needs one of each of its groups: the target of its `$ref`, each of `allOf`, any of `anyOf`, any of `oneOf`.
    Beginning with those that need nothing, what they make possible follows; what is never reached needs itself. Each
    member is looked at once, so the time is linear in the schema's size.
    """

    def __init__(self, schema: Any, references: References):
        self._references = references
        self._num_open: dict[int, int] = {}
        self._groups_with: dict[int, list[tuple[int, int]]] = {}
        waiting = deque(subschemas(schema))
        parts: list[dict[str, Any]] = []
        while waiting:
            part = waiting.popleft()
            if id(part) not in self._num_open:
                parts.append(part)
                waiting += self._add(part)
        self._possible: set[int] = set()
        self._spread([id(part) for part in parts if not self._num_open[id(part)]])

    def is_possible(self, part: Any) -> bool:
        return id(part) not in self._num_open or id(part) in self._possible

    def _add(self, part: dict[str, Any]) -> list[dict[str, Any]]:
        """Notes what it needs, and gives the parts that are named in it."""
        groups = [[each] for each in _list(part, "allOf")] + [_list(part, "anyOf"), _list(part, "oneOf")]
        if isinstance(part.get("$ref"), str):
            groups.append([self._references.target(part["$ref"])])
        # What is no object (a boolean, a mistake, a target elsewhere) is no matter of circles.
        groups = [group for group in groups if group and all(isinstance(each, dict) for each in group)]
        self._num_open[id(part)] = len(groups)
        for number, group in enumerate(groups):
            for each in group:
                self._groups_with.setdefault(id(each), []).append((id(part), number))
        return [each for group in groups for each in group]

    def _spread(self, found: list[int]) -> None:
        met: set[tuple[int, int]] = set()
        while found:
            part = found.pop()
            self._possible.add(part)
            for group in self._groups_with.get(part, ()):
                if group not in met:
                    met.add(group)
                    self._num_open[group[0]] -= 1
                    if not self._num_open[group[0]]:
                        found.append(group[0])


def _list(part: dict[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else []


_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_LIMITS: dict[str, type | tuple[type, ...]] = {
    "pattern": str,
    "patternProperties": dict,
    "format": str,
    "multipleOf": (int, float),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), (int, float)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (int, float)),
}
"""Keywords that may be dropped, and the types of a right value: a wrong one is the client's mistake. Dropping them
allows more and forbids nothing that was allowed."""


def as_grammar(schema: dict[str, Any], strict: bool) -> str:
    """The schema in llguidance's Lark dialect; without strict only what can be enforced of it."""
    return _directive(enforceable(schema, strict), strict)


def enforceable(schema: dict[str, Any], strict: bool) -> dict[str, Any]:
    """What of the schema is enforced: with strict, all."""
    found: dict[str, Any] = schema if strict else json.loads(_enforceable(json.dumps(schema)))
    return found


def problem_of(grammar: str) -> str:
    """Why the grammar cannot be used, on one line; empty where it can."""
    from llguidance import LLMatcher

    message: str = LLMatcher.validate_grammar(grammar)
    return "" if message.startswith("WARNING") else grammar_problem(message)


def _directive(schema: dict[str, Any], strict: bool) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": {**_WRITING, "lenient": not strict}})


@lru_cache(maxsize=256)
def _enforceable(text: str) -> str:
    """text: the schema's JSON. What is no schema at all, or can never match, stays as it is and is refused later."""
    schema = json.loads(text)
    if not _fails(schema):
        return text
    loose = copy.deepcopy(schema)
    for part in list(subschemas(loose)):
        for name in _LIMITS:
            if name in part and _fails({name: part[name], **_kind(part)}):
                _drop(part, name)
    for name in _LIMITS:  # what fails only beside others, for example in the parts of an allOf
        if not _fails(loose):
            break
        for part in list(subschemas(loose)):
            _drop(part, name)
    return text if _fails(loose) else json.dumps(loose)


def _kind(part: dict[str, Any]) -> dict[str, Any]:
    """Numbers' bounds mean different things for integers."""
    return {"type": part["type"]} if part.get("type") in ("integer", "number") else {}


def _fails(schema: dict[str, Any]) -> bool:
    """Not for a schema that contradicts itself: that can be enforced, only never met."""
    problem = problem_of("start: " + _directive(schema, strict=False))
    return bool(problem) and "Unsatisfiable schema" not in problem


def _drop(part: dict[str, Any], name: str) -> None:
    if not isinstance(part.get(name), _LIMITS[name]) or isinstance(part[name], bool):
        return
    del part[name]
    if name == "patternProperties":  # what they allowed must not fall under what is said of all others
        part.pop("additionalProperties", None)

"""What of a JSON schema can be enforced: the rest is left to the model where the client did not ask for `strict`."""

import copy
import json
from functools import lru_cache
from typing import Any

from cluster.api.schema_parts import subschemas
from replica.sampling.grammar_problem import grammar_problem

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

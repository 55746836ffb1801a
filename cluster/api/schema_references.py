"""References within a JSON schema that lead nowhere but back to themselves."""

from collections.abc import Iterator
from typing import Any

from cluster.api.sampling_fields import invalid


def check_references(schema: Any) -> None:
    """Raises PydanticCustomError."""
    reference = circular_reference(schema)
    if reference is not None:
        raise invalid(f"the reference {reference[:100]!r} is another name for itself, so that nothing matches it")


def circular_reference(schema: Any) -> str | None:
    """A `$ref` that is only another name for itself, directly or over others: no value could ever match it."""
    for start in _references(schema):
        seen: set[str] = set()
        reference: Any = start
        while isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            target = _target(schema, reference)
            reference = target.get("$ref") if isinstance(target, dict) else None
        if isinstance(reference, str):
            return start
    return None


def _references(schema: Any) -> Iterator[str]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _target(schema: Any, reference: str) -> Any:
    """What a JSON pointer behind `#` points at; None where that is nothing, or not within this schema."""
    if not reference.startswith("#"):
        return None
    part = schema
    for name in reference[1:].split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part

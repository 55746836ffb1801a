"""References within a JSON schema that lead nowhere but back to themselves."""

from collections import deque
from typing import Any

from cluster.api.sampling_fields import invalid
from cluster.api.schema_parts import References, subschemas


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

"""Keywords of a JSON schema that are null: clients that serialise every field write them, and mean that they are not
there."""

import copy
from typing import Any

from cluster.api.schema_parts import MAPS_OF_SCHEMAS, subschemas


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

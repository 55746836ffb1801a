"""Lines and fields of trace files: what is wrong with one is a ValueError that names file, line and field."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MAX_TOKENS = 1_000_000
"""Of one prompt or answer: more is taken for a mistake."""
SESSION_FIELDS = ("session", "session_id", "conversation_id", "chat_id")
"""By any of them a row of any format may name its session."""
LAST_MOMENT = 1e15
"""Times lie within this, in whatever unit: their differences stay exact enough."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def text_lines(path: Path) -> Iterator[str]:
    """Split at line feeds alone: the others that `str.splitlines` knows may stand inside a JSON string.

    A byte order mark is passed over. Raises ValueError for bytes that are no UTF-8.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{path.name} line {number} is no UTF-8: {error.reason}") from error


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line that is not empty. Raises ValueError for what is no JSON object."""
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path.name} line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path.name} line {number} is no JSON object")
        yield number, row


def cause(error: Exception) -> str:
    """What a reader tells about a bad line."""
    return f"it has no field {error.args[0]!r}" if isinstance(error, KeyError) else str(error)


def text_field(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{field} must be a text, got {value!r:.60}")
    value.encode()  # half of a surrogate pair is a ValueError here, rather than in a tokenizer
    return value


def id_text(value: object, field: str) -> str:
    """value: text or whole number that names something."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_field(value, field)


def session_of(row: Mapping[str, Any]) -> str:
    """What the row itself names its session by; empty where it does not."""
    for field in SESSION_FIELDS:
        if row.get(field) not in (None, ""):
            return id_text(row[field], field)
    return ""


def items(row: Mapping[str, Any], field: str) -> list[Any]:
    values = row[field]
    if not isinstance(values, list):
        raise ValueError(f"{field} must be a list, got {values!r:.60}")
    return values


def token_count(value: object, field: str) -> int:
    """value: whole number, 0 to MAX_TOKENS."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"{field} must be a whole number between 0 and {MAX_TOKENS:,}, got {value!r:.60}")
    return value


def moment(value: object, field: str) -> float:
    """Refuses what is no number, infinite or NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -LAST_MOMENT <= value <= LAST_MOMENT:
        raise ValueError(f"{field} must be a finite number of at most {LAST_MOMENT:g}, got {value!r:.60}")
    return float(value)

"""Reads a CSV of arrivals and lengths, such as Azure's LLM inference traces: no text, no reuse."""

import csv
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from cluster.lab.trace import Trace, TraceRequest, by_time
from cluster.lab.trace_lines import cause, moment, session_of, text_lines, token_count
from cluster.lab.word_tokenizer import VOCAB_SIZE


def read_arrivals(path: Path, seed: int = 0, num_requests: int | None = None) -> Trace:
    """Columns TIMESTAMP (ISO, or seconds), ContextTokens and GeneratedTokens. Prompts are random: none shares a block.

    The first `num_requests` rows, by their times. A column named as in SESSION_FIELDS is the request's session.
    Counts of 0 are read as 1: recorded traces hold some, and such a request was sent and took its turn too.
    Raises ValueError with the line for a row that is not so.
    """
    rng = Random(seed)
    requests: list[TraceRequest] = []
    rows = csv.DictReader(text_lines(path))
    while num_requests is None or len(requests) < num_requests:
        row = _next_row(rows, path)
        if row is None:
            break
        try:
            now = _seconds(row["TIMESTAMP"])
            num_prompt, num_new = (max(1, _count(row[name], name)) for name in ("ContextTokens", "GeneratedTokens"))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {rows.line_num} is no arrival: {cause(error)}") from error
        prompt = rng.choices(range(VOCAB_SIZE), k=num_prompt)
        requests.append(TraceRequest(prompt, num_new, session=session_of(row), at_seconds=now))
    return Trace(path.stem, by_time(requests))


def _next_row(rows: "csv.DictReader[str]", path: Path) -> dict[str, str | None] | None:
    try:
        return next(rows, None)
    except csv.Error as error:
        raise ValueError(f"{path.name} line {rows.line_num} is no CSV: {error}") from error


def _count(value: str | None, field: str) -> int:
    """Raises ValueError. value: None where the row is too short."""
    try:
        number: object = int(value or "")
    except ValueError:
        number = value
    return token_count(number, field)


def _seconds(value: str | None) -> float:
    try:
        seconds: object = float(value or "")
    except ValueError:
        seconds = _iso_seconds(value or "")
    return moment(seconds, "TIMESTAMP")


def _iso_seconds(value: str) -> float:
    """Where no zone is given all rows are taken to be in the same: an hour of summer time must not appear twice."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP must be seconds or an ISO date and time, got {value!r:.60}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

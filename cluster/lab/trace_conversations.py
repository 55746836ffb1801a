"""Reads recorded conversations: each turn of a session is a request that holds all turns before it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.trace import TextTokenizer, Trace, TraceRequest
from cluster.lab.trace_lines import cause, items, json_rows, text_field

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."
Turn = tuple[str, str]
"""Role and text."""


def requests_of(turns: Iterable[Turn], session: str, tokenize: TextTokenizer) -> Iterator[TraceRequest]:
    """One request for each turn of the assistant, in the ChatML format.

    The history holds the recorded answers: what was said before depends on nothing that is computed now, so every arm
    of a comparison does the same work.
    """
    prompt: list[int] = []
    opening, closing = tokenize("<|im_start|>assistant\n"), tokenize("<|im_end|>\n")
    for role, text in turns:
        body = tokenize(text)
        if role == "assistant" and prompt and body:
            yield TraceRequest(prompt + opening, len(body), tuple(body), session)
        prompt = prompt + tokenize(f"<|im_start|>{role}\n") + body + closing


def read_conversations(path: Path, tokenize: TextTokenizer, seed: int = 0, num_requests: int | None = None) -> Trace:
    """Three formats, told apart by the fields of the first line (one JSON object a line):

    - `messages` (a list of objects with role and content: a text, parts of type text, or null), with or without a
      `system` text beside it; a first line that holds only `system` is the system prompt of all (tau-bench);
    - `turns` as pairs of speaker (U or S) and text (Schema-Guided Dialogue);
    - `turns` as objects with `user` and `assistant`.

    Sessions are interleaved by the seed, as if many people talked at once; turns of one session keep their order.
    Raises ValueError with the line for anything else.
    """
    system = DEFAULT_SYSTEM_PROMPT
    sessions: list[list[TraceRequest]] = []
    for number, row in json_rows(path):
        try:
            own = text_field(row.get("system", system), "system")
            if set(row) == {"system"}:
                system = own
                continue
            turns = [("system", own), *_turns(row)]
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no conversation: {cause(error)}") from error
        sessions.append(list(requests_of(turns, f"s{number}", tokenize)))
        if num_requests is not None and sum(map(len, sessions)) >= 2 * num_requests:
            break  # enough, with some to spare: the last sessions end later than the trace
    trace = Trace(path.stem, interleave([s for s in sessions if s], Random(seed)))
    return trace if num_requests is None else trace.head(num_requests)


def interleave(sessions: Sequence[list[TraceRequest]], rng: Random, num_open: int = 32) -> list[TraceRequest]:
    """`num_open` sessions are talking at any time; the next turn comes from one of the half that waited longest."""
    waiting = list(reversed(sessions))
    talking: list[Iterator[TraceRequest]] = []
    mixed: list[TraceRequest] = []
    while waiting or talking:
        while waiting and len(talking) < num_open:
            talking.append(iter(waiting.pop()))
        chosen = talking.pop(rng.randrange((len(talking) + 1) // 2))
        request = next(chosen, None)
        if request is not None:
            mixed.append(request)
            talking.append(chosen)
    return mixed


def _turns(row: dict[str, Any]) -> list[Turn]:
    if "messages" in row:
        return [_message(message) for message in items(row, "messages")]
    return [
        turn for item in items(row, "turns") for turn in (_pair(item) if isinstance(item, list) else _exchange(item))
    ]


def _message(message: object) -> Turn:
    if not isinstance(message, dict):
        raise ValueError(f"a message must be an object, got {message!r:.60}")
    content = message.get("content")
    if isinstance(content, list):
        return text_field(message["role"], "role"), "".join(map(_part, content))
    return text_field(message["role"], "role"), "" if content is None else text_field(content, "content")


def _part(part: object) -> str:
    """The API's form of a content that consists of several: only text has tokens here."""
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ValueError(f"a part of a content must be an object of type text, got {part!r:.60}")
    return text_field(part["text"], "text")


def _pair(item: list[Any]) -> list[Turn]:
    roles = {"U": "user", "S": "assistant"}
    if len(item) != 2 or item[0] not in ("U", "S"):
        raise ValueError(f"a turn must be a speaker, U or S, and a text, got {item!r:.60}")
    return [(roles[item[0]], text_field(item[1], "the text of a turn"))]


def _exchange(item: object) -> list[Turn]:
    if not isinstance(item, dict):
        raise ValueError(f"a turn must be an object or a pair, got {item!r:.60}")
    return [(role, text_field(item[role], role)) for role in ("user", "assistant")]

"""Reads recorded conversations: each turn of a session is a request that holds all turns before it."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.session_order import interleave
from cluster.lab.trace import TextTokenizer, Trace, TraceRequest
from cluster.lab.trace_lines import cause, items, json_rows, session_of, text_field

DEFAULT_SYSTEM_PROMPT = "You are a helpful assistant."
SYSTEM_ROLES = ("system", "developer")
Turn = tuple[str, str]
"""Role and text."""


def requests_of(turns: Iterable[Turn], session: str, tokenize: TextTokenizer) -> Iterator[TraceRequest]:
    """One request for each turn of the assistant that says or calls something, in the ChatML format.

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
      `system` text beside it; a first line that holds only `system` is the system prompt of all (tau-bench) that do not
      begin with a system message of their own. An assistant's `tool_calls` are part of what it wrote;
    - `turns` as pairs of speaker (U or S) and text (Schema-Guided Dialogue);
    - `turns` as objects with `user` and `assistant`.

    Sessions are interleaved by the seed, as if many people talked at once; turns of one session keep their order. A
    line is a session, and lines that name the same (SESSION_FIELDS) are one: what such a line repeats of the one before
    is not asked again.
    Raises ValueError with the line for anything else.
    """
    system = DEFAULT_SYSTEM_PROMPT
    num_found = 0
    sessions: dict[str, list[TraceRequest]] = {}
    said: dict[str, tuple[list[Turn], int]] = {}
    for number, row in json_rows(path):
        try:
            own = text_field(row.get("system", system), "system")
            if set(row) == {"system"}:
                system = own
                continue
            turns = _with_system(_turns(row), own, "system" in row)
            session = session_of(row) or f"line {number}"
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no conversation: {cause(error)}") from error
        requests = list(requests_of(turns, session, tokenize))
        before, num_before = said.get(session, ([], 0))
        num_repeated = num_before if turns[: len(before)] == before else 0
        sessions.setdefault(session, []).extend(requests[num_repeated:])
        said[session] = turns, len(requests)
        num_found += len(requests) - num_repeated
        if num_requests is not None and num_found >= 2 * num_requests:
            break  # enough, with some to spare: the last sessions end later than the trace
    trace = Trace(path.stem, interleave([s for s in sessions.values() if s], Random(seed)))
    return trace if num_requests is None else trace.head(num_requests)


def _turns(row: dict[str, Any]) -> list[Turn]:
    if "messages" in row:
        return [_message(message) for message in items(row, "messages")]
    return [
        turn for item in items(row, "turns") for turn in (_pair(item) if isinstance(item, list) else _exchange(item))
    ]


def _with_system(turns: list[Turn], system: str, of_the_row: bool) -> list[Turn]:
    """A conversation has one system prompt. of_the_row: whether `system` stands beside the messages."""
    if not turns or turns[0][0] not in SYSTEM_ROLES:
        return [("system", system), *turns]
    if of_the_row and turns[0][1] != system:
        raise ValueError("its system text is another than that of its first message")
    return [("system", turns[0][1]), *turns[1:]]


def _message(message: object) -> Turn:
    if not isinstance(message, dict):
        raise ValueError(f"a message must be an object, got {message!r:.60}")
    role, content = text_field(message["role"], "role"), message.get("content")
    if isinstance(content, list):
        text = "".join(map(_part, content))
    else:
        text = "" if content is None else text_field(content, "content")
    return role, "\n".join(filter(None, [text, *map(_call, _calls(message))]))


def _calls(message: dict[str, Any]) -> list[object]:
    calls = [] if message.get("tool_calls") is None else items(message, "tool_calls")
    older = message.get("function_call")  # the API's form before tool_calls
    return calls if older is None else [*calls, older]


def _call(call: object) -> str:
    """What the model wrote to call a tool, in Hermes' form. The API's calls hold a `function`, tau-bench's are flat."""
    function = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(function, dict):
        raise ValueError(f"a tool call must be an object, got {call!r:.60}")
    name, arguments = text_field(function["name"], "name"), function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    text_field(arguments, "arguments")
    written = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}'
    return f"<tool_call>\n{written}\n</tool_call>"


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

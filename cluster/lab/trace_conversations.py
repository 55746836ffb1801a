"""Reads recorded conversations: each turn of a session is a request that holds all turns before it."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from cluster.lab.trace import TextTokenizer, Trace, TraceRequest

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

    - `messages` (a list of objects with role and content), with or without a `system` text beside it; a first line
      that holds only `system` is the system prompt of all (tau-bench);
    - `turns` as pairs of speaker (U or S) and text (Schema-Guided Dialogue);
    - `turns` as objects with `user` and `assistant`.

    Sessions are interleaved by the seed, as if many people talked at once; turns of one session keep their order.
    Raises ValueError with the line for anything else.
    """
    system = DEFAULT_SYSTEM_PROMPT
    sessions: list[list[TraceRequest]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        row = json.loads(line)
        if set(row) == {"system"}:
            system = row["system"]
            continue
        try:
            turns = [("system", row.get("system", system)), *_turns(row)]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no conversation: {error!r}") from error
        sessions.append(list(requests_of(turns, f"s{number}", tokenize)))
        if num_requests is not None and sum(map(len, sessions)) >= 2 * num_requests:
            break  # enough, with some to spare: the last sessions end later than the trace
    trace = Trace(path.stem, interleave([s for s in sessions if s], Random(seed)), _origin(path))
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


def _turns(row: dict) -> list[Turn]:
    if "messages" in row:
        return [(message["role"], message.get("content") or "") for message in row["messages"]]
    first = row["turns"][0]
    read: Callable[[dict | list], list[Turn]] = _pair if isinstance(first, list) else _exchange
    return [turn for item in row["turns"] for turn in read(item)]


def _pair(item: dict | list) -> list[Turn]:
    speaker, text = item
    return [({"U": "user", "S": "assistant"}[speaker], text)]


def _exchange(item: dict | list) -> list[Turn]:
    if not isinstance(item, dict):
        raise TypeError(f"a turn must be an object, got {item!r}")
    return [("user", item["user"]), ("assistant", item["assistant"])]


def _origin(path: Path) -> str:
    known = {
        "tau_": "sierra-research/tau-bench, MIT",
        "sgd_": "google-research-datasets/dstc8-schema-guided-dialogue, CC-BY-SA-4.0",
    }
    return next((origin for prefix, origin in known.items() if path.stem.startswith(prefix)), "")

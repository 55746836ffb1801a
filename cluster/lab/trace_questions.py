"""Reads sets of questions that share a text: few-shot prompts, documents with questions, and plain questions."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from cluster.lab.trace import TextTokenizer, Trace, TraceRequest
from cluster.lab.trace_conversations import DEFAULT_SYSTEM_PROMPT, requests_of

ANSWER_TOKENS = 32
"""Of an answer that the set does not give."""
_ORIGINS = {
    "bbh_": "suzgunmirac/BIG-Bench-Hard, MIT",
    "xquad_": "google-deepmind/xquad, CC-BY-SA-4.0",
    "mt_bench": "lm-sys/FastChat, Apache-2.0",
}


def read_questions(path: Path, tokenize: TextTokenizer, seed: int = 0, num_requests: int | None = None) -> Trace:
    """One JSON object a line, in one of three formats, told apart by the fields:

    - `fewshot` and `inputs`: every input behind the same worked examples (BIG-Bench Hard);
    - `context` and `questions`: every question behind the same paragraph (XQuAD);
    - `turns` as texts: questions that share nothing but the system prompt, each turn behind those before (MT-Bench).

    The order is drawn from the seed; turns of one session keep theirs. Raises ValueError with the line for a line of
    another format.
    """
    groups: list[list[TraceRequest]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        row = json.loads(line)
        try:
            groups.extend(_groups(row, str(number), tokenize))
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name} line {number} is no set of questions: {error!r}") from error
    rng = Random(seed)
    rng.shuffle(groups)
    requests = [request for group in groups for request in group]
    origin = next((text for prefix, text in _ORIGINS.items() if path.stem.startswith(prefix)), "")
    trace = Trace(path.stem, requests, origin)
    return trace if num_requests is None else trace.head(num_requests)


def _groups(row: dict, number: str, tokenize: TextTokenizer) -> Iterator[list[TraceRequest]]:
    """Groups of requests that must stay together and in order."""
    if "inputs" in row:
        for text in row["inputs"]:
            yield [_request(f"{row['fewshot']}\n\nQ: {text}\nA: Let's think step by step.", tokenize)]
    elif "questions" in row:
        for text in row["questions"]:
            yield [_request(f"{row['context']}\n\n{text}", tokenize)]
    else:
        turns = [("system", DEFAULT_SYSTEM_PROMPT)]
        for text in row["turns"]:
            answer = " ".join(f"{number}.{position}" for position in range(ANSWER_TOKENS))
            turns += [("user", text), ("assistant", answer)]
        yield list(requests_of(turns, f"q{number}", tokenize))


def _request(text: str, tokenize: TextTokenizer) -> TraceRequest:
    turns = [("system", DEFAULT_SYSTEM_PROMPT), ("user", text), ("assistant", "?")]
    (request,) = requests_of(turns, "", tokenize)
    return TraceRequest(request.prompt_ids, ANSWER_TOKENS)

"""Reads sets of questions that share a text: few-shot prompts, documents with questions, and plain questions."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.trace import TextTokenizer, Trace, TraceRequest
from cluster.lab.trace_conversations import DEFAULT_SYSTEM_PROMPT, requests_of
from cluster.lab.trace_lines import cause, items, json_rows, text_field

ANSWER_TOKENS = 32
"""Of an answer that the set does not give."""


def read_questions(path: Path, tokenize: TextTokenizer, seed: int = 0, num_requests: int | None = None) -> Trace:
    """One JSON object a line, in one of three formats, told apart by the fields:

    - `fewshot` and `inputs`: every input behind the same worked examples (BIG-Bench Hard);
    - `context` and `questions`: every question behind the same paragraph (XQuAD);
    - `turns` as texts: questions that share nothing but the system prompt, each turn behind those before (MT-Bench).

    The order is drawn from the seed; turns of one session keep theirs. Raises ValueError with the line for a line of
    another format.
    """
    groups: list[list[TraceRequest]] = []
    for number, row in json_rows(path):
        try:
            groups.extend(_groups(row, str(number), tokenize))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no set of questions: {cause(error)}") from error
    rng = Random(seed)
    rng.shuffle(groups)
    requests = [request for group in groups for request in group]
    trace = Trace(path.stem, requests)
    return trace if num_requests is None else trace.head(num_requests)


def _groups(row: dict[str, Any], number: str, tokenize: TextTokenizer) -> Iterator[list[TraceRequest]]:
    """Groups of requests that must stay together and in order."""
    if "inputs" in row:
        examples = text_field(row["fewshot"], "fewshot")
        for question in _texts(row, "inputs"):
            yield [_request(f"{examples}\n\nQ: {question}\nA: Let's think step by step.", tokenize)]
    elif "questions" in row:
        context = text_field(row["context"], "context")
        for question in _texts(row, "questions"):
            yield [_request(f"{context}\n\n{question}", tokenize)]
    else:
        turns = [("system", DEFAULT_SYSTEM_PROMPT)]
        for question in _texts(row, "turns"):
            answer = " ".join(f"{number}.{position}" for position in range(ANSWER_TOKENS))
            turns += [("user", question), ("assistant", answer)]
        yield list(requests_of(turns, f"q{number}", tokenize))


def _texts(row: dict[str, Any], field: str) -> list[str]:
    return [text_field(item, f"an item of {field}") for item in items(row, field)]


def _request(prompt: str, tokenize: TextTokenizer) -> TraceRequest:
    turns = [("system", DEFAULT_SYSTEM_PROMPT), ("user", prompt), ("assistant", "?")]
    (request,) = requests_of(turns, "", tokenize)
    return TraceRequest(request.prompt_ids, ANSWER_TOKENS)

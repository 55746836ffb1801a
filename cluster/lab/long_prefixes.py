"""Workloads of long shared beginnings, put together from the texts of the bundled traces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from cluster.lab.session_order import interleave
from cluster.lab.trace import TextTokenizer, Trace, TraceRequest
from cluster.lab.trace_lines import json_rows

NUM_DOCUMENTS = 12
LEAST_TOKENS, MOST_TOKENS = 4000, 8000
"""Of a document."""
QUESTION_TOKENS = 32
"""Of an answer to a question about a document."""


def documents(folder: Path, tokenize: TextTokenizer, rng: Random) -> list[list[TraceRequest]]:
    """Documents of 4,000 to 8,000 tokens, each with the questions that were asked about its paragraphs (XQuAD); each
    question stands alone behind its document."""
    rows = [row for _, row in json_rows(folder / "xquad_en_part.jsonl")]
    sessions = []
    for number in range(NUM_DOCUMENTS):
        text: list[int] = tokenize(f"Document {number}\n")
        questions: list[str] = []
        wanted = rng.randint(LEAST_TOKENS, MOST_TOKENS)
        for row in rng.sample(rows, len(rows)):
            if len(text) >= wanted:
                break
            text = text + tokenize(row["context"] + "\n\n")
            questions += row["questions"]
        sessions += [[TraceRequest(text + tokenize(question), QUESTION_TOKENS)] for question in questions]
    return sessions


def tools(folder: Path, tokenize: TextTokenizer, rng: Random) -> list[list[TraceRequest]]:
    """Descriptions of tools, 4,000 to 8,000 tokens each, behind which many people talk in several turns (worked
    examples of BIG-Bench Hard stand for the tools, talks are those of SGD)."""
    parts = [tokenize(str(row["fewshot"]) + "\n\n") for _, row in json_rows(folder / "bbh_part.jsonl")]
    headers = [_filled(tokenize(f"Tools {number}\n"), parts, rng) for number in range(NUM_DOCUMENTS // 2)]
    sessions = []
    for number, (_, row) in enumerate(json_rows(folder / "sgd_part.jsonl")):
        sessions.append(list(_talk(rng.choice(headers), row["turns"], f"talk {number}", tokenize)))
    return sessions


def coding(folder: Path, tokenize: TextTokenizer, rng: Random) -> list[list[TraceRequest]]:
    """Sessions over three repositories: behind the map of a repository, 4,000 to 8,000 tokens, each turn reads 300 to
    1,500 tokens and answers shortly (texts of BIG-Bench Hard)."""
    texts = [str(row["fewshot"]) for _, row in json_rows(folder / "bbh_part.jsonl")]
    parts = [tokenize(text + "\n\n") for text in texts]
    repositories = [_filled(tokenize(f"Repository {number}\n"), parts, rng) for number in range(3)]
    sessions = []
    for number in range(40):
        prompt, requests = rng.choice(repositories), []
        for turn in range(rng.randint(4, 12)):
            part = rng.choice(parts)
            start = rng.randrange(max(1, len(part) - 300))
            read = part[start : start + rng.randint(300, 1500)]
            prompt = prompt + tokenize(f"\nread file {number}.{turn}\n") + read
            answer = rng.choice(parts)[:64]
            requests.append(TraceRequest(prompt, len(answer), tuple(answer), f"session {number}"))
            prompt = prompt + answer
        sessions.append(requests)
    return sessions


LONG_PREFIXES: Mapping[str, Callable[[Path, TextTokenizer, Random], list[list[TraceRequest]]]] = {
    "documents": documents,
    "tools": tools,
    "coding": coding,
}


def long_prefix_trace(
    name: str, folder: Path, tokenize: TextTokenizer, seed: int = 0, num_requests: int | None = None
) -> Trace:
    """name: of LONG_PREFIXES. folder: of the bundled traces. The seed draws the texts and the order."""
    rng = Random(f"long prefixes {name} {seed}")
    sessions = LONG_PREFIXES[name](folder, tokenize, rng)
    rng.shuffle(sessions)
    trace = Trace(name, interleave(sessions, rng), "made from the bundled traces")
    return trace if num_requests is None else trace.head(num_requests)


def _filled(text: list[int], parts: Sequence[list[int]], rng: Random) -> list[int]:
    wanted = rng.randint(LEAST_TOKENS, MOST_TOKENS)
    for part in rng.sample(parts, len(parts)):
        if len(text) >= wanted:
            break
        text = text + part
    return text[:MOST_TOKENS]


def _talk(
    prompt: list[int], turns: Sequence[Sequence[str]], session: str, tokenize: TextTokenizer
) -> Iterator[TraceRequest]:
    for speaker, text in turns:
        said = tokenize(f"\n{speaker}: {text}")
        if speaker == "S":
            yield TraceRequest(prompt, len(said), tuple(said), session)
        prompt = prompt + said

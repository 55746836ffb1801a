"""Reads a CSV of arrivals and lengths, such as Azure's LLM inference traces: no text, no reuse."""

import csv
from datetime import datetime
from pathlib import Path
from random import Random

from cluster.lab.trace import Trace, TraceRequest
from cluster.lab.word_tokenizer import VOCAB_SIZE


def read_arrivals(path: Path, seed: int = 0, num_requests: int | None = None) -> Trace:
    """Columns TIMESTAMP (ISO, or seconds), ContextTokens and GeneratedTokens. Prompts are random: none shares a block.

    Raises ValueError with the line for a row that is not so.
    """
    rng = Random(seed)
    requests: list[TraceRequest] = []
    started: float | None = None
    with path.open(encoding="utf-8", newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            if num_requests is not None and len(requests) >= num_requests:
                break
            try:
                moment = _seconds(row["TIMESTAMP"])
                started = moment if started is None else started
                prompt = rng.choices(range(VOCAB_SIZE), k=max(1, int(row["ContextTokens"])))
                num_new = max(1, int(row["GeneratedTokens"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path.name} line {number} is no arrival: {error!r}") from error
            requests.append(TraceRequest(prompt, num_new, at_seconds=moment - started))
    return Trace(path.stem, requests, "Azure/AzurePublicDataset, CC-BY-4.0" if path.stem.startswith("azure") else "")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()[:26]).timestamp()

"""Reads Mooncake's trace: arrival times, lengths and the ids of blocks of 512 tokens, no text."""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random

from cluster.lab.trace import Trace, TraceRequest
from cluster.lab.word_tokenizer import VOCAB_SIZE

MOONCAKE_BLOCK_TOKENS = 512
SMALL_BLOCK_TOKENS = 16


def read_mooncake(path: Path, block_tokens: int = SMALL_BLOCK_TOKENS, num_requests: int | None = None) -> Trace:
    """Each block id becomes `block_tokens` tokens drawn from a generator seeded with the id.

    block_tokens: 16 shrinks the trace 32 times (prompts, answers, not times), so that a model with a window of 8,192
    can serve it; 512 keeps its real lengths. The last block of a prompt is cut to the prompt's length.
    Raises ValueError with the line for what is no row of such a trace.
    """
    if not 1 <= block_tokens <= MOONCAKE_BLOCK_TOKENS:
        raise ValueError(f"block_tokens must be between 1 and {MOONCAKE_BLOCK_TOKENS}, got {block_tokens}")
    requests: list[TraceRequest] = []
    for number, row in _rows(path):
        if num_requests is not None and len(requests) >= num_requests:
            break
        try:
            requests.append(_request(row, block_tokens))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no row of a Mooncake trace: {error!r}") from error
    name = path.stem if block_tokens == MOONCAKE_BLOCK_TOKENS else f"{path.stem} (blocks of {block_tokens})"
    return Trace(name, requests, "kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0")


def _rows(path: Path) -> Iterator[tuple[int, dict]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, json.loads(line)


def _request(row: dict, block_tokens: int) -> TraceRequest:
    ids = list(chain.from_iterable(_block(block_id, block_tokens) for block_id in row["hash_ids"]))
    length = -(-row["input_length"] * block_tokens // MOONCAKE_BLOCK_TOKENS)
    if not 0 < length <= len(ids):
        raise ValueError(f"{row['input_length']} tokens do not lie in {len(row['hash_ids'])} blocks")
    return TraceRequest(
        prompt_ids=ids[:length],
        num_new_tokens=max(1, round(row["output_length"] * block_tokens / MOONCAKE_BLOCK_TOKENS)),
        at_seconds=row["timestamp"] / 1000.0,
    )


@lru_cache(maxsize=200_000)
def _block(block_id: int, block_tokens: int) -> tuple[int, ...]:
    return tuple(Random(block_id).choices(range(VOCAB_SIZE), k=block_tokens))

"""Reads Mooncake's trace: arrival times, lengths and the ids of blocks of 512 tokens, no text."""

from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.trace import Trace, TraceRequest
from cluster.lab.trace_lines import cause, items, json_rows, moment, token_count
from cluster.lab.word_tokenizer import VOCAB_SIZE

MOONCAKE_BLOCK_TOKENS = 512
SMALL_BLOCK_TOKENS = 16


def read_mooncake(path: Path, block_tokens: int = SMALL_BLOCK_TOKENS, num_requests: int | None = None) -> Trace:
    """Each block id becomes `block_tokens` tokens drawn from a generator seeded with the id.

    block_tokens: 16 shrinks the trace 32 times (prompts, answers, not times), so that a model with a window of 8,192
    can serve it; 512 keeps its real lengths. The last block of a prompt is cut to the prompt's length.
    An answer of 0 tokens counts as 1: its prompt was computed.
    Raises ValueError with the line for what is no row of such a trace.
    """
    if not 1 <= block_tokens <= MOONCAKE_BLOCK_TOKENS:
        raise ValueError(f"block_tokens must be between 1 and {MOONCAKE_BLOCK_TOKENS}, got {block_tokens}")
    requests: list[TraceRequest] = []
    for number, row in json_rows(path):
        if num_requests is not None and len(requests) >= num_requests:
            break
        try:
            requests.append(_request(row, block_tokens))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no row of a Mooncake trace: {cause(error)}") from error
    name = path.stem if block_tokens == MOONCAKE_BLOCK_TOKENS else f"{path.stem} (blocks of {block_tokens})"
    return Trace(name, requests)


def _request(row: dict[str, Any], block_tokens: int) -> TraceRequest:
    num_input, num_output = (token_count(row[field], field) for field in ("input_length", "output_length"))
    block_ids = items(row, "hash_ids")
    for block_id in block_ids:
        if not isinstance(block_id, int) or isinstance(block_id, bool) or block_id < 0:
            raise ValueError(f"hash_ids must be whole numbers of at least 0, got {block_id!r:.60}")
    ids = list(chain.from_iterable(_block(block_id, block_tokens) for block_id in block_ids))
    length = -(-num_input * block_tokens // MOONCAKE_BLOCK_TOKENS)
    if not 0 < length <= len(ids):
        raise ValueError(f"an input_length of {num_input} tokens does not lie in {len(block_ids)} blocks")
    return TraceRequest(
        prompt_ids=ids[:length],
        num_new_tokens=max(1, round(num_output * block_tokens / MOONCAKE_BLOCK_TOKENS)),
        at_seconds=moment(row["timestamp"], "timestamp") / 1000.0,
    )


@lru_cache(maxsize=200_000)
def _block(block_id: int, block_tokens: int) -> tuple[int, ...]:
    return tuple(Random(block_id).choices(range(VOCAB_SIZE), k=block_tokens))

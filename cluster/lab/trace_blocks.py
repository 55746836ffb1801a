"""Reads traces of arrival times, lengths and ids of prompt blocks, without text: Mooncake's and Bailian's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.trace import Trace, TraceRequest, by_time
from cluster.lab.trace_lines import cause, id_text, items, json_rows, moment, session_of, token_count
from cluster.lab.word_tokenizer import VOCAB_SIZE

SMALL_BLOCK_TOKENS = 16
NO_PARENT = "-1"


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """id_tokens: prompt tokens that one of the file's block ids stands for. time_unit: seconds."""

    name: str
    id_tokens: int
    time_unit: float


MOONCAKE = BlockFormat("Mooncake", 512, 0.001)
BAILIAN = BlockFormat("Bailian", 16, 1.0)


def block_format(fields: set[str]) -> BlockFormat:
    """By the fields of a row that has hash_ids: only Bailian's name the chat before."""
    return BAILIAN if "parent_chat_id" in fields else MOONCAKE


def read_blocks(
    path: Path, form: BlockFormat, block_tokens: int = SMALL_BLOCK_TOKENS, num_requests: int | None = None
) -> Trace:
    """Each block id becomes `block_tokens` tokens drawn from a generator seeded with the id.

    block_tokens: fewer than the format's own shrink the trace (prompts, answers, not times): 16 makes Mooncake's 32
    times shorter, so that a model with a window of 8,192 can serve it; as many keep its real lengths. The last block of
    a prompt is cut to the prompt's length. An answer of 0 tokens counts as 1: its prompt was computed.

    The first `num_requests` rows of the file, by their times. A session is the row's own `session`; in Bailian's all
    chats that descend from one (`chat_id`, `parent_chat_id`), in the order of their `turn` where the times are equal.
    Raises ValueError with the line for what is no row of such a trace.
    """
    if not 1 <= block_tokens <= form.id_tokens:
        raise ValueError(
            f"a block id of {form.name}'s stands for {form.id_tokens} tokens: blocks must have 1 to {form.id_tokens}, "
            f"got {block_tokens}"
        )
    rows: list[tuple[int, str, TraceRequest]] = []
    chats = _Chats()
    for number, row in json_rows(path):
        if num_requests is not None and len(rows) >= num_requests:
            break
        try:
            chat = chats.add(row) if form is BAILIAN else ""
            turn = token_count(row["turn"], "turn") if "turn" in row else 0
            rows.append((turn, chat, _request(row, form, block_tokens)))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path.name} line {number} is no row of a {form.name} trace: {cause(error)}") from error
    rows.sort(key=lambda numbered: numbered[0])
    name = path.stem if block_tokens == form.id_tokens else f"{path.stem} (blocks of {block_tokens})"
    try:
        requests = [replace(request, session=chats.first_of(chat)) if chat else request for _, chat, request in rows]
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    return Trace(name, by_time(requests))


class _Chats:
    """Which chats follow each other. A parent that the file lacks, or -1 for none, begins a session."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def add(self, row: Mapping[str, Any]) -> str:
        """The row's chat. Raises ValueError for a chat_id that occurred before."""
        chat = id_text(row["chat_id"], "chat_id")
        if chat in self._parents:
            raise ValueError(f"chat_id {chat} occurred before")
        parent = row["parent_chat_id"]
        self._parents[chat] = NO_PARENT if parent is None else id_text(parent, "parent_chat_id")
        return chat

    def first_of(self, chat: str) -> str:
        """Raises ValueError for chats that descend from themselves."""
        begun_at, passed = chat, {chat}
        while (parent := self._parents.get(chat, NO_PARENT)) != NO_PARENT:
            if parent in passed:
                raise ValueError(f"chat_id {begun_at} descends from itself")
            passed.add(parent)
            chat = parent
        return chat


def _request(row: dict[str, Any], form: BlockFormat, block_tokens: int) -> TraceRequest:
    num_input, num_output = (token_count(row[field], field) for field in ("input_length", "output_length"))
    block_ids = items(row, "hash_ids")
    for block_id in block_ids:
        if not isinstance(block_id, int) or isinstance(block_id, bool) or block_id < 0:
            raise ValueError(f"hash_ids must be whole numbers of at least 0, got {block_id!r:.60}")
    if not 0 < num_input <= len(block_ids) * form.id_tokens:
        raise ValueError(f"an input_length of {num_input} tokens does not lie in {len(block_ids)} blocks")
    if num_input <= (len(block_ids) - 1) * form.id_tokens:  # another format's blocks: shares would be misread
        raise ValueError(
            f"an input_length of {num_input} tokens does not reach the last of {len(block_ids)} blocks of "
            f"{form.id_tokens}"
        )
    ids = list(chain.from_iterable(_block(block_id, block_tokens) for block_id in block_ids))
    return TraceRequest(
        prompt_ids=ids[: -(-num_input * block_tokens // form.id_tokens)],
        num_new_tokens=max(1, round(num_output * block_tokens / form.id_tokens)),
        session="" if form is BAILIAN else session_of(row),
        at_seconds=moment(row["timestamp"], "timestamp") * form.time_unit,
    )


@lru_cache(maxsize=200_000)
def _block(block_id: int, block_tokens: int) -> tuple[int, ...]:
    return tuple(Random(block_id).choices(range(VOCAB_SIZE), k=block_tokens))

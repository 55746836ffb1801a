"""Finds the reader of a trace file by what stands in its first line."""

from dataclasses import replace
from pathlib import Path

from cluster.lab.long_prefixes import LONG_PREFIXES, long_prefix_trace
from cluster.lab.synthetic_prefixes import SyntheticPrefixes
from cluster.lab.trace import TextTokenizer, Trace
from cluster.lab.trace_arrivals import read_arrivals
from cluster.lab.trace_blocks import SMALL_BLOCK_TOKENS, block_format, read_blocks
from cluster.lab.trace_conversations import read_conversations
from cluster.lab.trace_lines import json_rows
from cluster.lab.trace_questions import read_questions
from cluster.lab.word_tokenizer import tokenize as word_tokenize
from cluster.setting_sources import expanded

DATA_DIR = Path(__file__).parent / "data" / "traces"
SYNTHETIC = {"synthetic": 0.0, "synthetic-hot": 0.5}
"""Names of generated traces and the share of their sessions that one group has."""
BUNDLED = {
    "mooncake": "mooncake_part.jsonl",
    "sgd": "sgd_part.jsonl",
    "tau": "tau_part.jsonl",
    "bbh": "bbh_part.jsonl",
    "xquad_en": "xquad_en_part.jsonl",
    "xquad_zh": "xquad_zh_part.jsonl",
    "mt_bench": "mt_bench_question.jsonl",
    "azure": "azure_part.csv",
}
"""Names of the parts of public traces that come with the program."""
ORIGINS = {
    "mooncake": "kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0",
    "sgd": "google-research-datasets/dstc8-schema-guided-dialogue, CC-BY-SA-4.0",
    "tau": "sierra-research/tau-bench, MIT",
    "bbh": "suzgunmirac/BIG-Bench-Hard, MIT",
    "xquad_en": "google-deepmind/xquad, CC-BY-SA-4.0",
    "xquad_zh": "google-deepmind/xquad, CC-BY-SA-4.0",
    "mt_bench": "lm-sys/FastChat, Apache-2.0",
    "azure": "Azure/AzurePublicDataset, CC-BY-4.0",
}
"""Source and licence of each; of a user's own file only its name is known, whatever it looks like."""


def load_trace(
    name_or_path: str,
    *,
    seed: int = 0,
    num_requests: int | None = None,
    block_tokens: int | None = None,
    tokenize: TextTokenizer = word_tokenize,
) -> Trace:
    """name_or_path: a key of SYNTHETIC, LONG_PREFIXES or BUNDLED, or a file. block_tokens: for traces of block ids,
    None means 16.

    Raises ValueError for an unknown name or format, and for block_tokens with a trace that has no block ids.
    """
    if name_or_path in SYNTHETIC:
        _refuse_blocks(block_tokens, name_or_path)
        return SyntheticPrefixes(hot_share=SYNTHETIC[name_or_path]).trace(seed, num_requests)
    if name_or_path in LONG_PREFIXES:
        _refuse_blocks(block_tokens, name_or_path)
        return long_prefix_trace(name_or_path, DATA_DIR, tokenize, seed, num_requests)
    path = DATA_DIR / BUNDLED[name_or_path] if name_or_path in BUNDLED else expanded(name_or_path)
    if not path.is_file():
        names = ", ".join([*SYNTHETIC, *LONG_PREFIXES, *BUNDLED])
        raise ValueError(f"trace {name_or_path!r} is no file and none of: {names}")
    trace = _read(path, seed, num_requests, block_tokens, tokenize)
    return replace(trace, origin=ORIGINS.get(name_or_path, path.name))


def _read(path: Path, seed: int, num_requests: int | None, block_tokens: int | None, tokenize: TextTokenizer) -> Trace:
    fields = set() if path.suffix.lower() == ".csv" else _first_fields(path)
    if "hash_ids" in fields:
        return read_blocks(path, block_format(fields), block_tokens or SMALL_BLOCK_TOKENS, num_requests)
    _refuse_blocks(block_tokens, path.name)
    if path.suffix.lower() == ".csv":
        return read_arrivals(path, seed, num_requests)
    if {"inputs", "questions", "question_id"} & fields:
        return read_questions(path, tokenize, seed, num_requests)
    if {"messages", "turns", "system"} & fields:
        return read_conversations(path, tokenize, seed, num_requests)
    raise ValueError(f"{path.name} is in no known format; its first line has the fields {sorted(fields)}")


def _refuse_blocks(block_tokens: int | None, name: str) -> None:
    if block_tokens is not None:
        raise ValueError(f"{name} has no block ids (hash_ids) that could stand for {block_tokens} tokens each")


def _first_fields(path: Path) -> set[str]:
    for _, row in json_rows(path):
        return set(row)
    raise ValueError(f"{path.name} is empty")

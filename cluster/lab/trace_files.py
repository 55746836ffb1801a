"""Finds the reader of a trace file by what stands in its first line."""

from dataclasses import replace
from pathlib import Path

from cluster.lab.synthetic_prefixes import SyntheticPrefixes
from cluster.lab.trace import TextTokenizer, Trace
from cluster.lab.trace_arrivals import read_arrivals
from cluster.lab.trace_conversations import read_conversations
from cluster.lab.trace_lines import json_rows
from cluster.lab.trace_mooncake import SMALL_BLOCK_TOKENS, read_mooncake
from cluster.lab.trace_questions import read_questions
from cluster.lab.word_tokenizer import tokenize as word_tokenize

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
    mooncake_block_tokens: int = SMALL_BLOCK_TOKENS,
    tokenize: TextTokenizer = word_tokenize,
) -> Trace:
    """name_or_path: a key of SYNTHETIC or BUNDLED, or a file. Raises ValueError for an unknown name or format."""
    if name_or_path in SYNTHETIC:
        return SyntheticPrefixes(hot_share=SYNTHETIC[name_or_path]).trace(seed, num_requests)
    path = DATA_DIR / BUNDLED[name_or_path] if name_or_path in BUNDLED else Path(name_or_path).expanduser()
    if not path.is_file():
        names = ", ".join([*SYNTHETIC, *BUNDLED])
        raise ValueError(f"trace {name_or_path!r} is no file and none of: {names}")
    trace = _read(path, seed, num_requests, mooncake_block_tokens, tokenize)
    return replace(trace, origin=ORIGINS.get(name_or_path, path.name))


def _read(
    path: Path, seed: int, num_requests: int | None, mooncake_block_tokens: int, tokenize: TextTokenizer
) -> Trace:
    if path.suffix == ".csv":
        return read_arrivals(path, seed, num_requests)
    fields = _first_fields(path)
    if "hash_ids" in fields:
        return read_mooncake(path, mooncake_block_tokens, num_requests)
    if {"inputs", "questions", "question_id"} & fields:
        return read_questions(path, tokenize, seed, num_requests)
    if {"messages", "turns", "system"} & fields:
        return read_conversations(path, tokenize, seed, num_requests)
    raise ValueError(f"{path.name} is in no known format; its first line has the fields {sorted(fields)}")


def _first_fields(path: Path) -> set[str]:
    for _, row in json_rows(path):
        return set(row)
    raise ValueError(f"{path.name} is empty")

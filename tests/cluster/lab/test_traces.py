"""Readers and the generator."""

import itertools
import json
from pathlib import Path

import pytest

from cluster.lab.scenario import lab_hasher
from cluster.lab.synthetic_prefixes import SyntheticPrefixes
from cluster.lab.trace import Trace
from cluster.lab.trace_blocks import MOONCAKE, read_blocks
from cluster.lab.trace_files import BUNDLED, SYNTHETIC, load_trace
from cluster.lab.word_tokenizer import VOCAB_SIZE, tokenize

HASHER = lab_hasher(16)


def hit_share_of_one_cache(trace: Trace) -> float:
    """Of an infinite cache, contiguous blocks, prompts alone."""
    seen: set[bytes] = set()
    hits = 0
    for request in trace.requests:
        keys = HASHER.keys(request.prompt_ids)
        usable = keys[: (len(request.prompt_ids) - 1) // 16]
        hits += 16 * next((n for n, key in enumerate(usable) if key not in seen), len(usable))
        seen.update(keys)
    return hits / trace.num_prompt_tokens


@pytest.mark.parametrize("name", [*BUNDLED, *SYNTHETIC])
def test_each_named_trace_loads_the_same_twice(name: str) -> None:
    one, other = load_trace(name, num_requests=60), load_trace(name, num_requests=60)
    assert len(one.requests) == 60
    assert one.requests == other.requests
    assert all(0 <= token < VOCAB_SIZE for request in one.requests for token in request.prompt_ids)


def test_mooncake_rows_share_what_their_block_ids_share(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 1100, "output_length": 1, "hash_ids": [0, 1, 2]},
        {"timestamp": 3000, "input_length": 600, "output_length": 32, "hash_ids": [0, 3]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    small = read_blocks(path, MOONCAKE)
    first, second, third = (request.prompt_ids for request in small.requests)
    assert [len(request.prompt_ids) for request in small.requests] == [32, 35, 19]
    assert [request.num_new_tokens for request in small.requests] == [2, 1, 1]
    assert [request.at_seconds for request in small.requests] == [0.0, 1.5, 3.0]
    assert second[:32] == first and third[:16] == first[:16] and third[16:] != first[16:19]
    whole = read_blocks(path, MOONCAKE, block_tokens=512)
    assert [len(request.prompt_ids) for request in whole.requests] == [1024, 1100, 600]


@pytest.mark.parametrize("name", ["sgd", "synthetic", "tau"])
def test_a_turn_repeats_the_turn_before_with_its_answer(name: str) -> None:
    by_session: dict[str, list] = {}
    for request in load_trace(name, num_requests=200).requests:
        by_session.setdefault(request.session, []).append(request)
    assert sum(len(turns) > 1 for turns in by_session.values()) > 10
    for turns in by_session.values():
        for before, after in itertools.pairwise(turns):
            said = [*before.prompt_ids, *before.answer_ids]
            assert list(after.prompt_ids[: len(said)]) == said
            assert len(before.answer_ids) == before.num_new_tokens


def test_the_reuse_of_the_traces_is_as_published() -> None:
    """0.816 with the model's own tokenizer for all of SGD; no-reuse traffic has none but the system prompt."""
    assert 0.6 < hit_share_of_one_cache(load_trace("sgd", num_requests=400)) < 0.9
    assert hit_share_of_one_cache(load_trace("azure", num_requests=100)) == 0.0


def test_half_of_a_hot_workload_belongs_to_one_group() -> None:
    trace = SyntheticPrefixes(hot_share=0.5, groups=12, users=10, turns=4).trace(seed=3)
    assert len(trace.requests) == 12 * 10 * 4
    heads = [tuple(request.prompt_ids[:32]) for request in trace.requests]
    most = max(heads.count(head) for head in set(heads)) / len(heads)
    assert 0.5 < most < 0.6  # the hot half, and what the even half gives the same group


def test_a_line_of_no_known_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="in no known format"):
        load_trace(str(path))


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(
        ValueError, match="is no file and none of: synthetic, synthetic-hot, documents, tools, coding, mooncake"
    ):
        load_trace("nowhere")


def test_the_word_tokenizer_loses_no_text_and_keeps_prefixes() -> None:
    text = "<|im_start|>user\nIt's 3.14, isn't it? über_all <|im_end|>\n"
    assert tokenize(text) == tokenize(text)
    assert tokenize(text + "<|im_start|>")[: len(tokenize(text))] == tokenize(text)
    assert 10 < len(tokenize(text)) < 30

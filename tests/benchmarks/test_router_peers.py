"""The comparison with other routers: what it sends, what it refuses to compare, and how it sums up."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from cache.block_hasher import BlockHasher
from cluster.lab.conversations import Conversation, Exchange
from cluster.text.tokenization import ChatTokenizer
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.messages import GenerateRequest
from replica.sampling_params import SamplingParams
from tests.benchmarks import paced_replica
from tests.benchmarks.paced_replica import PacedReplica
from tests.benchmarks.router_ceiling import most_hit_tokens
from tests.benchmarks.router_peers import _empty_row, _store, _stored, _summarise, _verdict
from tests.benchmarks.router_rounds import SideRun, problems
from tests.benchmarks.router_works import WORKS, PeerWork
from tests.cluster.text.small_tokenizer import write_small_tokenizer

WORK = WORKS[0]
OURS = SideRun(
    side="warmlane", num_requests=WORK.num_requests, errors=[], prompt_tokens=100, completion_tokens=10, hit_tokens=80,
    counted_prompt_tokens=100, counted_generated_tokens=10, counted_hit_tokens=80, ttft_p50=0.1, ttft_p95=0.2,
    wall_seconds=1.0, router_cpu_ms=2.0, replica_cpu_ms=3.0, busiest_over_mean=1.0,
    decisions={"warm": WORK.num_requests - 1, "cold": 1},
)  # fmt: skip
SMG = replace(OURS, side="smg", hit_tokens=64, counted_hit_tokens=64, ttft_p95=0.3,
              decisions={"cache_aware": WORK.num_requests, "tree_match": 3})  # fmt: skip
VLLM = replace(OURS, side="vllm-router", decisions={"prefix_hit": 20, "prefix_miss": 5})


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_every_side_is_sent_the_same(work: PeerWork) -> None:
    talks = work.conversations(seed=1)
    assert talks == work.conversations(seed=1) != work.conversations(seed=2)
    assert sum(len(list(talk.requests())) for talk in talks) == work.num_requests
    prompts = {talk.group: talk.system_prompt for talk in talks}
    assert len(set(prompts.values())) == work.groups
    assert all(talk.system_prompt == prompts[talk.group] for talk in talks)


async def test_the_ceiling_is_what_one_cache_for_all_would_hit(tmp_path: Path) -> None:
    tokenizer = ChatTokenizer(str(write_small_tokenizer(tmp_path)))
    exchange = Exchange("hello " * 8, "world " * 8)
    talks = [Conversation(str(user), "a", "the quick brown fox " * 8, (exchange,) * 2) for user in range(2)]
    longest = [await tokenizer.encode_chat(list(talks[0].requests())[turn]) for turn in range(2)]
    cacheable = [(len(ids) - 1) // 16 * 16 for ids in longest]
    first, second = await most_hit_tokens(talks[:1], tokenizer), await most_hit_tokens(talks, tokenizer)
    assert 0 < first <= len(longest[0])
    assert second - first == sum(cacheable)


def test_equal_work_is_comparable() -> None:
    assert problems([OURS, SMG, VLLM], WORK) == []


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (replace(SMG, errors=["HTTP 400"]), "1 of 90 failed, the first with HTTP 400"),
        (replace(SMG, prompt_tokens=99, counted_prompt_tokens=99), "prompt and completion tokens, ours"),
        (replace(SMG, completion_tokens=9, counted_generated_tokens=9), "prompt and completion tokens, ours"),
        (replace(SMG, hit_tokens=63), "the replicas counted"),
        (replace(SMG, decisions={"random": WORK.num_requests}), "it says it decided 0 of 90"),
        (replace(VLLM, decisions={"missing_tokens": 7}), "7 decisions without a prefix: a fallback"),
    ],
)
def test_unequal_work_and_fallbacks_are_named(run: SideRun, message: str) -> None:
    (found,) = problems([OURS, run], WORK)
    assert message in found


def test_a_row_keeps_ratios_within_rounds_and_leaves_out_rounds_that_do_not_count(tmp_path: Path) -> None:
    row = _empty_row(WORK, "auto")
    better = replace(OURS, hit_tokens=96, counted_hit_tokens=96)
    for ours, found in ((OURS, []), (better, []), (better, ["smg: failed"])):
        row["rounds"].append(
            {
                "seed": 0,
                "problems": found,
                "most_hit_tokens": 90,
                "sides": {"warmlane": ours.to_dict(), "smg": SMG.to_dict()},
            }
        )
    _summarise(row)
    assert row["ratio"] == {"smg": [80 / 64, (80 / 64 + 96 / 64) / 2, 96 / 64]}
    assert row["errors"] == ["smg: failed"]
    assert not _verdict(row)[1]
    row["errors"] = []
    assert _verdict(row)[1]
    assert not _verdict({**row, "ratio": {"smg": [0.9, 0.99, 1.2]}})[1]
    out = tmp_path / "router.json"
    out.write_text('{"rows": [1]}')
    _store(out, "hits", row)
    assert _stored(out)["hits"] == row
    assert '"rows": [\n  1' in out.read_text()


class _Engine(PacedReplica):
    """The engine alone, without Serve."""

    def __init__(self) -> None:
        pass

    def build(self, folder: Path) -> Engine:
        config = EngineConfig(model=str(folder), max_model_len=256, num_blocks=64)
        return self._build_engine(config, BlockHasher(b"0123456789abcdef", "f" * 32, 16), None)  # type: ignore[arg-type]

    def __del__(self) -> None:
        pass


def test_a_paced_engine_hits_its_cache_and_waits_as_long_as_the_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(paced_replica.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(paced_replica, "ANSWER", "the")
    engine = _Engine().build(write_small_tokenizer(tmp_path))
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    for number in range(2):
        engine.add(GenerateRequest(str(number), list(range(100)), sampling, 0.0))
        while engine.has_work:
            engine.step()
    assert engine.counters.num_hit_tokens == 96
    pace = paced_replica.PACE
    prefills = [pace.step_seconds + n * pace.prefill_token_seconds for n in (100, 4)]
    assert len(waited) == 4
    assert waited[0] == pytest.approx(prefills[0], rel=0.01)
    assert waited[2] == pytest.approx(prefills[1], rel=0.01)

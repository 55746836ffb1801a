"""The cache's benchmark: what it refuses to compare, what it sends, and its paced replica with real pages."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.messages import GenerateRequest, Pull
from replica.sampling_params import SamplingParams
from replica.transfer.page_puller import PagePuller
from replica.transfer.page_server import PageServer
from replica.transfer.transfer import Transfer
from tests.benchmarks.cache_decide import Decider
from tests.benchmarks.cache_documents import DOCUMENTS, OURS, WITHOUT, DocumentsRun, _report
from tests.benchmarks.cache_engine import Answer
from tests.benchmarks.cache_peers import HITS, TTFT, ratios
from tests.benchmarks.cache_restore import BARS, HOST, RECOMPUTE, REUSABLE_TOKENS, RestorePairs
from tests.benchmarks.paced_pages import Paced70B
from tests.benchmarks.report import Report
from tests.benchmarks.router_micro import HASHER
from tests.benchmarks.test_router_peers import OURS as ROUTED
from tests.benchmarks.test_router_peers import SMG
from tests.cluster.text.small_tokenizer import write_small_tokenizer
from tests.waiting import wait_until

SECRET = b"0123456789abcdef"
CAME = Answer(0.05, [1, 2], REUSABLE_TOKENS, {"host": REUSABLE_TOKENS})
COMPUTED = Answer(1.0, [1, 2], 0, {})


@pytest.mark.parametrize(
    ("came", "computed", "message"),
    [
        (replace(CAME, loaded={"host": 16}), COMPUTED, "1008 tokens of host expected"),
        (replace(CAME, loaded={"disk": REUSABLE_TOKENS}), COMPUTED, "1008 tokens of host expected"),
        (CAME, replace(COMPUTED, hit_tokens=16), "16 tokens from a cache"),
        (CAME, replace(COMPUTED, token_ids=[1, 3]), "against"),
    ],
)
def test_sides_that_did_other_things_are_not_compared(came: Answer, computed: Answer, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        RestorePairs(HOST, "host").add(RECOMPUTE, came, computed)


def test_a_row_keeps_ratios_within_pairs_and_its_bar_over_runs(tmp_path: Path) -> None:
    pairs, report = RestorePairs(HOST, "host"), Report({})
    for seconds in (1.0, 0.4, 0.6):
        pairs.add(RECOMPUTE, CAME, replace(COMPUTED, seconds=seconds))
    pairs.report(report)
    report.write(tmp_path / "cache.json")
    found = json.loads((tmp_path / "cache.json").read_text())
    assert found["rows"][0]["ratio"] == {RECOMPUTE: pytest.approx([8.0, 12.0, 20.0])}
    assert [bar["holds"] for bar in found["bars"]] == [True]
    again = Report({})
    again.keep_rows_of(tmp_path / "cache.json")
    again.add_bar(f"{HOST} against {RECOMPUTE}", BARS[HOST], 1.0)
    assert [bar["holds"] for bar in again.bars] == [False]


def test_a_document_is_opened_before_its_bursts_and_every_side_is_sent_the_same() -> None:
    arrivals = DOCUMENTS.arrivals(1)
    assert arrivals == DOCUMENTS.arrivals(1) != DOCUMENTS.arrivals(2)
    by_document: dict[str, list[float]] = {}
    for at, (system, _) in arrivals:
        by_document.setdefault(system["content"], []).append(at)
    assert len(by_document) == DOCUMENTS.documents
    for moments in by_document.values():
        assert len(moments) == 1 + 2 * DOCUMENTS.questions
        assert moments[1] - moments[0] >= DOCUMENTS.bursts_after[0]
        assert len(set(moments)) == 3


def test_unequal_work_is_no_row() -> None:
    run = DocumentsRun(1.0, 1.0, 1.0, 100, 10, {"peer": 16.0}, 0.0)
    report = Report({})
    _report(DOCUMENTS, {OURS: [run], WITHOUT: [replace(run, mean_ttft=2.0)]}, report)
    assert report.bars[0]["holds"]
    with pytest.raises(RuntimeError, match="unequal work"):
        _report(DOCUMENTS, {OURS: [run], WITHOUT: [replace(run, prompt_tokens=99)]}, report)
    with pytest.raises(RuntimeError, match="no page came"):
        _report(DOCUMENTS, {OURS: [replace(run, hits={"device": 64.0})], WITHOUT: [run]}, report)


def test_the_best_router_in_hits_may_be_another_than_the_one_in_seconds() -> None:
    hitting, quick = replace(SMG, hit_tokens=100, ttft_p95=0.9), replace(SMG, hit_tokens=40, ttft_p95=0.3)
    assert ratios([ROUTED, hitting, quick]) == pytest.approx({HITS: 0.8, TTFT: 1.5})
    assert ratios([ROUTED]) == {}


def test_pulls_are_considered_on_one_side_alone() -> None:
    shared = list(range(512))
    prompt = shared + list(range(1000, 1512))
    sides = [Decider(shared, pulls=pulls) for pulls in (True, False)]
    for side in sides:
        side.seconds(prompt)
    assert [side.num_pulls for side in sides] == [1, 0]
    assert len(HASHER.keys(prompt)) == 64


class _Engine(Paced70B):
    """The engine alone, without Serve."""

    def __init__(self) -> None:
        self._secret = SECRET

    def build(self, folder: Path) -> Engine:
        config = EngineConfig(model=str(folder), max_model_len=256, num_blocks=32, pull=True)
        return self._build_engine(config, BlockHasher(SECRET, "f" * 32, 16), None)  # type: ignore[arg-type]

    def _transfer(self, identity: bytes, page_bytes: int) -> Transfer:
        return PagePuller(SECRET, identity, page_bytes)

    def __del__(self) -> None:
        pass


def test_paced_engines_pull_real_pages_from_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.paced_replica.ANSWER", "the")
    folder = write_small_tokenizer(tmp_path)
    LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2).save_pretrained(folder)
    giver, taker = _Engine().build(folder), _Engine().build(folder)
    assert giver.page_source is not None
    assert giver.page_transfer is not None
    assert giver.page_bytes == 2 * 2 * 16 * 32 * 4
    server = PageServer(SECRET, "giver", giver.page_source, "127.0.0.1")
    try:
        for engine, pull in ((giver, None), (taker, Pull(server.address, 96))):
            sampling = SamplingParams(max_tokens=1, temperature=0.0)
            engine.add(GenerateRequest("1", list(range(100)), sampling, time.monotonic(), pull=pull))
            while engine.has_work:
                wait_until(lambda engine=engine: engine.can_step, "the pages have come")
                engine.step()
        assert taker.counters.num_loaded_tokens == {"peer": 96}
    finally:
        server.close()
        for engine in (giver, taker):
            assert engine.loader is not None
            engine.loader.close()

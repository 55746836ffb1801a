"""The benchmark's own arithmetic; the benchmark itself is not run by the tests."""

import json
from dataclasses import replace

import pytest

from cluster.lab.cost_model import DEFAULT_COST_MODEL
from router.policies.registry import DEFAULT_POLICY, POLICIES
from tests.benchmarks.bench_router import BenchReport
from tests.benchmarks.router_matrix import (
    TRACES,
    Cell,
    CellResult,
    cells_by_label,
    default_cells,
    full_cells,
    run_cell,
    to_json,
    verdicts,
)
from tests.benchmarks.router_micro import micro_verdicts


def test_labels_are_unique_and_the_full_matrix_holds_the_default() -> None:
    default, full = default_cells(TRACES), full_cells(TRACES)
    labels = [cell.label for cell in full]
    assert len(set(labels)) == len(labels)
    assert set(default) <= set(full)
    assert Cell("sgd", 4, 0.8, 0.1).label == "sgd@4@0.8"
    assert Cell("sgd", 16, 0.95, 0.3).label == "sgd@16@0.95@0.3"


def test_cells_are_found_by_their_labels() -> None:
    assert cells_by_label(["sgd@4@0.8", "synthetic@4@closed"]) == [
        Cell("sgd", 4, 0.8, 0.1),
        Cell("synthetic", 4, None, 0.1),
    ]
    with pytest.raises(ValueError, match="got nobody"):
        cells_by_label(["sgd@4@0.8", "nobody@4@0.8"])


def test_a_slice_keeps_what_other_slices_found() -> None:
    def report(trace: str, p99: float, work: str, before: BenchReport | None = None) -> BenchReport:
        result = CellResult(Cell(trace, 4, 0.8, 0.1), {}, {"random": {"ttft_p99": p99}}, "random", True, ())
        bars = [(f"{result.cell.label} first", p99 < 2.0, "")]
        return BenchReport([{"work": work, "ours": p99}], [result], bars, before.merged() if before else {})

    first = report("sgd", 1.0, "events_applied")
    second = report("tau", 2.0, "bytes_per_key", first)
    third = report("sgd", 3.0, "events_applied", second).merged()
    assert {label: cell["random"]["ttft_p99"] for label, cell in third["policies"].items()} == {
        "sgd@4@0.8": 3.0,
        "tau@4@0.8": 2.0,
    }
    assert set(third["scenarios"]) == set(third["policies"])
    assert {row["work"]: row["ours"] for row in third["rows"]} == {"events_applied": 3.0, "bytes_per_key": 2.0}
    assert {bar["bar"]: bar["holds"] for bar in third["bars"]} == {"sgd@4@0.8 first": False, "tau@4@0.8 first": False}


def test_a_cell_has_all_policies_and_its_bars_can_fail() -> None:
    result = run_cell(Cell("mt_bench", 4, 0.8, 0.1), 24, [1], DEFAULT_COST_MODEL, None)
    report = json.loads(json.dumps(to_json([result])))
    assert set(report["policies"]["mt_bench@4@0.8"]) == set(POLICIES)
    row = report["policies"]["mt_bench@4@0.8"]["random"]
    assert {"ttft_p50", "ttft_p99", "hit_tokens", "busiest_over_mean"} <= set(row)
    bars = {bar.partition(" ")[2]: holds for bar, holds, _ in verdicts(result)}
    assert len(bars) == 4
    worse = {**result.policies[DEFAULT_POLICY], "total_p50": 1e6, "hit_tokens": 0.0}
    bad = replace(result, within_noise=False, beaten_by=["random"], policies={**result.policies, DEFAULT_POLICY: worse})
    assert not any(holds for _, holds, _ in verdicts(bad))


def test_the_bars_of_the_micro_benchmarks_can_fail() -> None:
    rows = [
        {"work": "longest_prefix_8x64", "ours": {"p50": 20, "p99": 50}, "dynamo_radix_tree": {"p50": 25, "p99": 40}},
        {"work": "longest_prefix_64x2048", "ours": {"p50": 700}},
        {"work": "whole_decision_8x64", "ours": {"p50": 160}},
        {"work": "events_applied", "ours": {"median": 400_000}, "longest_slice_ms": 2.5},
        {"work": "bytes_per_key", "ours": 150},
        {"work": "simulated_requests", "ours": {"median": 250}},
    ]
    quiet = micro_verdicts([row | {"slowness": 1.0} for row in rows])
    assert [holds for _, holds, _ in quiet] == [True, False, False, False, False, False, True, False]
    slow = micro_verdicts([row | {"slowness": 1.5} for row in rows])
    assert [holds for _, holds, _ in slow] == [True, False, True, True, True, True, True, True]

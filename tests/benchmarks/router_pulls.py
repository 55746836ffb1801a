"""Pages that move between replicas, simulated: the default policy with and without, and llm-d's fixed threshold."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from cluster.lab.arm_runs import ArmRuns, run_arm
from cluster.lab.comparison import NOISE
from cluster.lab.cost_model import DEFAULT_COST_MODEL
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.long_prefixes import LONG_PREFIXES
from cluster.lab.scenario import Scenario
from cluster.lab.statistics import paired_difference
from cluster.lab.trace_files import load_trace
from router.policies.registry import DEFAULT_POLICY, POLICIES
from tests.benchmarks.router_matrix import STEP_NOISE, TRACES

WITH, WITHOUT, THRESHOLD = "with pulls", "without", "llmd_p2p"


@dataclass(frozen=True, slots=True)
class PullCell:
    """cache_share: None is unbounded."""

    trace: str
    replicas: int
    load: float
    cache_share: float | None

    @property
    def label(self) -> str:
        return f"{self.trace}@{self.replicas}@{self.load:g}@{self.cache_share or 'unbounded'}"


def pull_cells(traces: Sequence[str] = (*TRACES, *LONG_PREFIXES)) -> list[PullCell]:
    """The traces of the matrix with a tenth of their blocks; long beginnings with half of theirs, and with all."""
    cells = []
    for replicas, load in ((4, 0.8), (16, 0.95)):
        for trace in traces:
            shares = (0.5, None) if trace in LONG_PREFIXES else (0.1,)
            cells += [PullCell(trace, replicas, load, share) for share in shares]
    return cells


@dataclass(frozen=True)
class PullResult:
    """summaries: arm -> numbers. behind_without, behind_threshold: seconds of TTFT p99 that `with pulls` lies behind,
    least, measured and most; same_...: whether that may be chance or is small."""

    cell: PullCell
    summaries: dict[str, dict[str, float]]
    behind_without: tuple[float, float, float]
    behind_threshold: tuple[float, float, float]
    not_behind_without: bool
    not_behind_threshold: bool
    others: dict[str, dict[str, float]] = field(default_factory=dict)


def run_pull_cell(cell: PullCell, num_requests: int, seeds: Sequence[int]) -> PullResult:
    trace = load_trace(cell.trace, num_requests=num_requests)

    def scenario(pull: bool) -> Scenario:
        config = FleetConfig(num_replicas=cell.replicas, step_noise=STEP_NOISE, num_slow_replicas=1, pull=pull)
        return Scenario.at_load(trace, config, DEFAULT_COST_MODEL, cell.cache_share, cell.load, raise_share=True)

    with_pulls, without = scenario(True), scenario(False)
    arms = {
        WITH: run_arm(with_pulls, DEFAULT_POLICY, {}, seeds),
        WITHOUT: run_arm(without, DEFAULT_POLICY, {}, seeds),
        THRESHOLD: run_arm(with_pulls, "llmd_p2p", {}, seeds),
    }
    others = {}
    if cell.trace in LONG_PREFIXES:
        names = [name for name in POLICIES if name not in (DEFAULT_POLICY, "llmd_p2p")]
        others = {name: _summary(run_arm(without, name, {}, seeds)) for name in names}
    return PullResult(
        cell,
        {name: _summary(arm) for name, arm in arms.items()},
        *(_behind(arms[WITH], arms[name]) for name in (WITHOUT, THRESHOLD)),
        *(_is_same(arms[WITH], arms[name]) for name in (WITHOUT, THRESHOLD)),
        others,
    )


def run_pull_cells(
    cells: Sequence[PullCell],
    num_requests: int,
    seeds: Sequence[int],
    jobs: int,
    on_cell: Callable[[PullResult], None] = lambda _: None,
) -> list[PullResult]:
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(10,)) as pool:
        futures = {pool.submit(run_pull_cell, cell, num_requests, seeds): cell for cell in cells}
        results = {}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            on_cell(future.result())
    return [results[cell] for cell in cells]


def pull_verdicts(result: PullResult) -> list[tuple[str, bool, str]]:
    """(bar, whether it holds, what was measured) of one cell."""
    label, ours = result.cell.label, result.summaries[WITH]
    found = []
    for name, holds in ((WITHOUT, result.not_behind_without), (THRESHOLD, result.not_behind_threshold)):
        text = f"TTFT p99 {ours['ttft_p99']:.2f} s, {result.summaries[name]['ttft_p99']:.2f} s"
        found.append((f"{label} not behind {name}", holds, text))
    if result.others:
        everybody = {**result.summaries, **result.others}
        least = min(everybody, key=lambda name: everybody[name]["computed_prefill_tokens"])
        share = ours["computed_prefill_tokens"] / everybody[least]["computed_prefill_tokens"]
        found.append((f"{label} computes at most 1.15 of who computes least", share <= 1.15, f"{share:.2f} of {least}"))
        soonest = min(everybody, key=lambda name: everybody[name]["total_p50"])
        share = ours["total_p50"] / everybody[soonest]["total_p50"]
        found.append((f"{label} median total within 1.05 of the best", share <= 1.05, f"{share:.2f} of {soonest}"))
    return found


def to_json(results: Sequence[PullResult]) -> dict[str, object]:
    return {
        result.cell.label: {
            **result.summaries,
            **result.others,
            "behind": {WITHOUT: result.behind_without, THRESHOLD: result.behind_threshold},
        }
        for result in results
    }


def _summary(arm: ArmRuns) -> dict[str, float]:
    found = {name: round(value, 6) for name, value in arm.summary().items()}
    for tier in ("peer", "host"):
        found[f"{tier}_tokens"] = sum(run.loaded_tokens.get(tier, 0) for run in arm.runs)
    return found


def _behind(one: ArmRuns, other: ArmRuns) -> tuple[float, float, float]:
    found = paired_difference(*([outcome.ttft_seconds for outcome in arm.outcomes] for arm in (one, other)), 99)
    return round(found.low, 4), round(found.value, 4), round(found.high, 4)


def _is_same(one: ArmRuns, other: ArmRuns) -> bool:
    """Whether `one` is ahead, or behind by chance or by little."""
    low, value, _ = _behind(one, other)
    return low <= 0.0 or value <= NOISE * other.percentile("ttft_seconds", 99)

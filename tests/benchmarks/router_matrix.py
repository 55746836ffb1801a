"""The policy matrix: every policy on every trace, simulated, and what the default policy must show there."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.lab.arm_runs import run_arm
from cluster.lab.comparison import Comparison
from cluster.lab.cost_model import DEFAULT_COST_MODEL, CostModel
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import Scenario
from cluster.lab.trace_files import load_trace
from router.policies.registry import DEFAULT_POLICY, POLICIES

TRACES = ("mooncake", "tau", "sgd", "bbh", "xquad_en", "xquad_zh", "mt_bench", "azure", "synthetic", "synthetic-hot")
NO_REUSE = ("mt_bench", "azure")
GENERATED = ("synthetic", "synthetic-hot")
BALANCERS = ("random", "round_robin", "power_of_two", "least_tokens")
STEP_NOISE = 0.2
CLOSED_LOOP_USERS = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the matrix. load: None is the closed loop. cache_share: None is unbounded."""

    trace: str
    replicas: int
    load: float | None
    cache_share: float | None

    @property
    def label(self) -> str:
        """`trace@replicas@load`, and the cache's share where it is not the default 10 %."""
        drive = f"{self.load:g}" if self.load is not None else "closed"
        cache = (
            "" if self.cache_share == 0.1 else "@unbounded" if self.cache_share is None else f"@{self.cache_share:g}"
        )
        return f"{self.trace}@{self.replicas}@{drive}{cache}"


def default_cells(traces: Sequence[str]) -> list[Cell]:
    """4 replicas at 80 % and 16 at 95 %, the generator also closed loop, the hot group with unbounded caches."""
    cells = [Cell(trace, replicas, load, 0.1) for replicas, load in ((4, 0.8), (16, 0.95)) for trace in traces]
    cells += [Cell(trace, 4, None, 0.1) for trace in GENERATED if trace in traces]
    if "synthetic-hot" in traces:
        cells.append(Cell("synthetic-hot", 4, 0.8, None))
    return cells


def full_cells(traces: Sequence[str]) -> list[Cell]:
    """What the default leaves out as well: 50, 80 and 95 % at both sizes, 10 and 30 % of the unique blocks."""
    cells = [
        Cell(trace, replicas, load, share)
        for share in (0.1, 0.3)
        for replicas in (4, 16)
        for load in (0.5, 0.8, 0.95)
        for trace in traces
    ]
    return cells + [cell for cell in default_cells(traces) if cell not in cells]


def cells_by_label(labels: Sequence[str]) -> list[Cell]:
    """Raises ValueError for a label that the full matrix does not have."""
    known = {cell.label: cell for cell in full_cells(TRACES)}
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise ValueError(f"cells must be labels of the matrix, got {', '.join(unknown)}")
    return [known[label] for label in labels]


@dataclass(frozen=True, slots=True)
class CellResult:
    """policies: name -> numbers. first: lowest TTFT p99. within_noise: whether the default policy is first or its
    distance is noise. beaten_by: who is better in both TTFT p99 and hit tokens."""

    cell: Cell
    scenario: Mapping[str, object]
    policies: Mapping[str, Mapping[str, object]]
    first: str
    within_noise: bool
    beaten_by: Sequence[str]


def run_cell(
    cell: Cell, num_requests: int, seeds: Sequence[int], cost_model: CostModel, folder: Path | None
) -> CellResult:
    named = {path.stem: path for path in folder.iterdir()} if folder is not None else {}
    path = next((str(file) for stem, file in named.items() if stem.startswith(cell.trace)), cell.trace)
    trace = load_trace(path, num_requests=num_requests)
    config = FleetConfig(num_replicas=cell.replicas, step_noise=STEP_NOISE, num_slow_replicas=1)
    if cell.load is None:
        scenario = Scenario.closed(trace, config, cost_model, cell.cache_share, CLOSED_LOOP_USERS, raise_share=True)
    else:
        scenario = Scenario.at_load(trace, config, cost_model, cell.cache_share, cell.load, raise_share=True)
    arms = [run_arm(scenario, policy, {}, seeds) for policy in POLICIES]
    comparison = Comparison(scenario, arms, seeds)
    ours = next(arm for arm in arms if arm.policy == DEFAULT_POLICY)
    described = comparison.to_dict()
    return CellResult(
        cell,
        described["scenario"],  # type: ignore[arg-type]
        described["policies"],  # type: ignore[arg-type]
        comparison.first.policy,
        comparison.within_noise(ours),
        comparison.beaten_by(ours),
    )


def run_matrix(
    cells: Sequence[Cell],
    num_requests: int,
    seeds: Sequence[int],
    jobs: int,
    cost_model: CostModel = DEFAULT_COST_MODEL,
    folder: Path | None = None,
    on_cell: Callable[[CellResult], None] = lambda _: None,
) -> list[CellResult]:
    """In the order of the cells, whatever the number of jobs."""
    with ProcessPoolExecutor(jobs, initializer=os.nice, initargs=(10,)) as pool:  # the machine stays usable
        futures = {pool.submit(run_cell, cell, num_requests, seeds, cost_model, folder): cell for cell in cells}
        results = {}
        for future in as_completed(futures):
            result = future.result()
            results[futures[future]] = result
            on_cell(result)
    return [results[cell] for cell in cells]


def _number(result: CellResult, policy: str, name: str) -> float:
    return float(result.policies[policy][name])  # type: ignore[arg-type]


def verdicts(result: CellResult) -> list[tuple[str, bool, str]]:
    """(bar, whether it holds, what was measured) of one cell."""
    cell, found = result.cell, []
    if cell.cache_share is not None and cell.load is not None:
        ours, best = (_number(result, policy, "ttft_p99") for policy in (DEFAULT_POLICY, result.first))
        text = f"{ours:.2f} s; first: {result.first} {best:.2f} s"
        found.append((f"{cell.label} TTFT p99 first or within noise", result.within_noise, text))
        text = ", ".join(result.beaten_by) or "by none"
        found.append((f"{cell.label} not beaten in both TTFT p99 and hit tokens", not result.beaten_by, text))
    even = [policy for policy in result.policies if _number(result, policy, "busiest_over_mean") < 1.3]
    if cell.cache_share is not None and even:
        best_even = max(even, key=lambda policy: _number(result, policy, "hit_tokens"))
        kept = _number(result, DEFAULT_POLICY, "hit_tokens") / max(1.0, _number(result, best_even, "hit_tokens"))
        good = kept >= 0.95 or _number(result, best_even, "hit_share") < 0.01
        found.append((f"{cell.label} at least .95 of the best even arm's hits", good, f"{kept:.2f} of {best_even}"))
    if cell.trace in NO_REUSE:
        best_total = min(_number(result, policy, "total_p50") for policy in BALANCERS)
        share = _number(result, DEFAULT_POLICY, "total_p50") / best_total
        found.append((f"{cell.label} total p50 within 2 % of the best balancer", share <= 1.02, f"{share:.3f}"))
    if cell.trace == "synthetic-hot" and cell.cache_share is None:
        hit, busy = (_number(result, DEFAULT_POLICY, name) for name in ("hit_share", "busiest_over_mean"))
        good = hit >= 0.78 and busy < 1.15
        found.append((f"{cell.label} hit at least .78 at busiest/mean under 1.15", good, f"{hit:.3f} at {busy:.2f}"))
    return found


def to_json(results: Sequence[CellResult]) -> dict[str, object]:
    return {
        "policies": {result.cell.label: result.policies for result in results},
        "scenarios": {result.cell.label: {**result.scenario, **asdict(result.cell)} for result in results},
    }


if __name__ == "__main__":
    one = run_cell(Cell("synthetic-hot", 4, 0.8, 0.1), 100, [1], DEFAULT_COST_MODEL, None)
    print(json.dumps({name: values["ttft_p99"] for name, values in one.policies.items()}, indent=1))

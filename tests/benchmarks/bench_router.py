"""`make bench-router`: what the router costs, and whether its default policy is worth it. One command runs it all.

Writes tests/benchmarks/out/router.json and prints each bar with what was measured. Bars that do not hold are printed
as such; the exit status is 0 when the benchmark ran, whatever it found. A run of some parts, traces or cells keeps what
the file says of the others, so that the matrix can be run a slice at a time.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.lab.cost_model import DEFAULT_COST_MODEL, CostModel
from router.policies.registry import DEFAULT_POLICY
from tests.benchmarks import router_matrix, router_micro, router_peers, router_pulls, router_scale
from tests.benchmarks.router_works import WORKS

OUT = Path(__file__).parent / "out" / "router.json"
Verdict = tuple[str, bool, str]


@dataclass
class BenchReport:
    """What was found so far; written after each part, so that an interrupted run keeps what it has.

    before: the report of earlier runs, of which everything stays that this run does not find anew.
    """

    rows: list[router_micro.Row] = field(default_factory=list)
    cells: list[router_matrix.CellResult] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    before: Mapping[str, Any] = field(default_factory=dict)

    def merged(self) -> dict[str, Any]:
        bars = [{"bar": bar, "holds": good, "measured": text} for bar, good, text in self.verdicts]
        found = router_matrix.to_json(self.cells)
        return {
            **self.before,
            "rows": _joined(self.before.get("rows", []), self.rows, "work"),
            **{name: {**self.before.get(name, {}), **cells} for name, cells in found.items()},
            "bars": _joined(self.before.get("bars", []), bars, "bar"),
        }

    def write(self) -> None:
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(self.merged(), indent=1) + "\n", encoding="utf-8")


def _joined(
    before: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], name: str
) -> list[Mapping[str, Any]]:
    """By the field `name`; of two entries the new one."""
    return list({entry[name]: entry for entry in (*before, *new)}.values())


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console()
    started = time.monotonic()
    report = BenchReport(before=json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {})
    if args.part in ("all", "micro"):
        _micro(report, console)
    if args.part in ("all", "matrix"):
        _matrix(args, report, console)
        console.print(_matrix_table(report.cells))
    if args.part in ("all", "pulls"):
        _pulls(args, report, console)
    if args.part in ("all", "peers"):
        works = args.peer_works.split(",")
        report.verdicts += router_peers.run_peers(
            OUT, console, works, args.peer_rounds, args.transport, args.add_rounds
        )
        report.before = json.loads(OUT.read_text(encoding="utf-8"))  # with the rounds, which are written one by one
        report.write()
    if args.part in ("all", "scale"):
        found = router_scale.run_scale(console)
        report.before = {**report.before, "scale": found}
        report.verdicts += router_scale.verdicts(found)
        report.write()
    for bar, good, text in report.verdicts:
        console.print(f"{'holds ' if good else 'MISSED'} {bar}: {text}", style=None if good else "red", highlight=False)
    console.print(f"{OUT} written after {time.monotonic() - started:.0f} s")
    return 0


def _micro(report: BenchReport, console: Console) -> None:
    report.rows = router_micro.all_micro_rows()
    report.verdicts += router_micro.micro_verdicts(report.rows)
    slowness = [row["slowness"] for row in report.rows]
    console.print(
        f"This machine was {min(slowness):.2f} to {max(slowness):.2f} times as slow as the one that the bars are for "
        "is at its quiet speed; absolute times are scaled by that.",
        highlight=False,
    )
    for row in report.rows:
        if "skipped" in row:
            console.print(f"{row['work']}: left out {row['skipped']}", style="yellow", highlight=False)
    report.write()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-router")
    parser.add_argument("--part", choices=("all", "micro", "matrix", "pulls", "peers", "scale"), default="all")
    parser.add_argument("--full", action="store_true", help="50, 80 and 95 %% load, both fleet and cache sizes: hours")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--traces", default=",".join(router_matrix.TRACES))
    parser.add_argument("--cells", help="only these, by their labels: mooncake@16@0.95,…")
    parser.add_argument("--trace-folder", type=Path, help="full traces; files that begin with a trace's name are taken")
    parser.add_argument("--cost-model", type=Path, help="JSON of `warmlane lab fit`")
    parser.add_argument(
        "--peer-works", default=",".join(work.name for work in WORKS), help="works of the part peers (default: all)"
    )
    parser.add_argument("--peer-rounds", type=int, default=5)
    parser.add_argument("--add-rounds", action="store_true", help="to those of an earlier run of the part peers")
    parser.add_argument("--transport", default="auto", help="of our cluster in the part peers (default: %(default)s)")
    return parser.parse_args(argv)


def _pulls(args: argparse.Namespace, report: BenchReport, console: Console) -> None:
    cells = router_pulls.pull_cells()
    if args.cells:
        wanted = set(args.cells.split(","))
        cells = [cell for cell in cells if cell.label in wanted]
    known = dict(report.before.get("pulls", {}))  # type: ignore[call-overload]

    def on_cell(result: router_pulls.PullResult) -> None:
        report.verdicts += router_pulls.pull_verdicts(result)
        known.update(router_pulls.to_json([result]))
        report.before = {**report.before, "pulls": known}
        report.write()
        console.print(f"{result.cell.label} done", highlight=False)

    router_pulls.run_pull_cells(cells, args.requests, list(range(1, args.seeds + 1)), args.jobs, on_cell)


def _matrix(args: argparse.Namespace, report: BenchReport, console: Console) -> None:
    traces = args.traces.split(",")
    cells = router_matrix.full_cells(traces) if args.full else router_matrix.default_cells(traces)
    if args.cells:
        cells = router_matrix.cells_by_label(args.cells.split(","))
    cost_model = CostModel.read(args.cost_model) if args.cost_model else DEFAULT_COST_MODEL
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("policy matrix", total=len(cells))

        def on_cell(result: router_matrix.CellResult) -> None:
            progress.update(task, advance=1, description=result.cell.label)
            report.cells.append(result)
            report.verdicts += router_matrix.verdicts(result)
            report.write()
            if result.scenario["cache_at_floor"]:
                share = result.scenario["cache_share"]
                progress.console.print(
                    f"{result.cell.label}: the cache was raised so that each replica holds the longest request; "
                    f"the fleet's cache is {share:.0%} of the unique blocks",
                    highlight=False,
                )

        report.cells = router_matrix.run_matrix(
            cells, args.requests, list(range(1, args.seeds + 1)), args.jobs, cost_model, args.trace_folder, on_cell
        )
    report.write()


def _matrix_table(results: Sequence[router_matrix.CellResult]) -> Table:
    table = Table(title=f"{DEFAULT_POLICY} against the first in TTFT p99", title_justify="left")
    for name in ("trace@replicas@load", "first"):
        table.add_column(name, no_wrap=True)
    for name in ("p99", "its p99", "hit", "its hit", "busy"):
        table.add_column(name, justify="right")
    for result in results:
        ours, first = result.policies[DEFAULT_POLICY], result.policies[result.first]
        table.add_row(
            result.cell.label,
            result.first,
            f"{ours['ttft_p99']:.2f}",
            f"{first['ttft_p99']:.2f}",
            f"{ours['hit_share']:.3f}",
            f"{first['hit_share']:.3f}",
            f"{ours['busiest_over_mean']:.2f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())

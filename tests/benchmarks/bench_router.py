"""`make bench-router`: what the router costs, and whether its default policy is worth it. One command runs it all.

Writes tests/benchmarks/out/router.json and prints each bar with what was measured. Bars that do not hold are printed
as such; the exit status is 0 when the benchmark ran, whatever it found.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.lab.cost_model import DEFAULT_COST_MODEL, CostModel
from router.policies.registry import DEFAULT_POLICY
from tests.benchmarks import router_matrix, router_micro

OUT = Path(__file__).parent / "out" / "router.json"
Verdict = tuple[str, bool, str]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console()
    started = time.monotonic()
    verdicts: list[Verdict] = []
    report: dict[str, object] = {"rows": [], "policies": {}}
    if args.part in ("all", "micro"):
        slowness = router_micro.calibration()
        rows = router_micro.all_micro_rows()
        slowness = max(slowness, router_micro.calibration())
        report |= {"rows": rows, "slowness": slowness}
        console.print(f"This machine is {slowness:.2f} times as slow as the one the bars are for, at its quiet speed.")
        verdicts += router_micro.micro_verdicts(rows, slowness)
        for row in rows:
            if "skipped" in row:
                console.print(f"{row['work']}: left out {row['skipped']}", style="yellow", highlight=False)
    if args.part in ("all", "matrix"):
        results = _matrix(args, console)
        report |= router_matrix.to_json(results)
        verdicts += [verdict for result in results for verdict in router_matrix.verdicts(result)]
        console.print(_matrix_table(results))
    report["bars"] = [{"bar": bar, "holds": good, "measured": text} for bar, good, text in verdicts]
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for bar, good, text in verdicts:
        console.print(f"{'holds ' if good else 'MISSED'} {bar}: {text}", style=None if good else "red", highlight=False)
    console.print(f"{OUT} written after {time.monotonic() - started:.0f} s")
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-router")
    parser.add_argument("--part", choices=("all", "micro", "matrix"), default="all")
    parser.add_argument("--full", action="store_true", help="50, 80 and 95 %% load, both fleet and cache sizes: hours")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--traces", default=",".join(router_matrix.TRACES))
    parser.add_argument("--trace-folder", type=Path, help="full traces; files that begin with a trace's name are taken")
    parser.add_argument("--cost-model", type=Path, help="JSON of `warmlane lab fit`")
    return parser.parse_args(argv)


def _matrix(args: argparse.Namespace, console: Console) -> list[router_matrix.CellResult]:
    traces = args.traces.split(",")
    cells = router_matrix.full_cells(traces) if args.full else router_matrix.default_cells(traces)
    cost_model = CostModel.read(args.cost_model) if args.cost_model else DEFAULT_COST_MODEL
    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("policy matrix", total=len(cells))

        def on_cell(result: router_matrix.CellResult) -> None:
            progress.update(task, advance=1, description=result.cell.label)
            if result.scenario["cache_at_floor"]:
                share = result.scenario["cache_share"]
                progress.console.print(
                    f"{result.cell.label}: the floor of four of the longest requests per replica binds; "
                    f"the fleet's cache is {share:.0%} of the unique blocks",
                    highlight=False,
                )

        return router_matrix.run_matrix(
            cells, args.requests, list(range(1, args.seeds + 1)), args.jobs, cost_model, args.trace_folder, on_cell
        )


def _matrix_table(results: Sequence[router_matrix.CellResult]) -> Table:
    table = Table(title=f"{DEFAULT_POLICY} against the first in TTFT p99 and the second best", title_justify="left")
    for name in ("trace@replicas@load", "ours p99", "first", "its p99", "hit ours", "hit first", "busy ours"):
        table.add_column(name, justify="left" if name in ("trace@replicas@load", "first") else "right")
    for result in results:
        ours, first = result.policies[DEFAULT_POLICY], result.policies[result.first]
        table.add_row(
            result.cell.label,
            f"{ours['ttft_p99']:.2f}",
            result.first,
            f"{first['ttft_p99']:.2f}",
            f"{ours['hit_share']:.3f}",
            f"{first['hit_share']:.3f}",
            f"{ours['busiest_over_mean']:.2f}",
        )
    return table


if __name__ == "__main__":
    raise SystemExit(main())

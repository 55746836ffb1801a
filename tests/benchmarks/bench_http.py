"""`make bench-http`: what it costs to bring an answer from an engine to a client, by every transport, interleaved.

The engine answers at once (`InstantEngine`: no model); the API, the relay, Ray Serve and HAProxy are the real ones.
Each round runs every work on every side in turn; a ratio above 1 says that ours (the default transport) is better.
Writes tests/benchmarks/out/http.json after each round.
"""

import argparse
import asyncio
import platform
import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.http_apps import OUR_TRANSPORTS, PYTHON_PROXY, RAY_DEFAULT, UVICORN
from tests.benchmarks.http_sides import Side, cluster_sides, uvicorn_side
from tests.benchmarks.http_works import WORKS, HttpRun, HttpWork, run_work
from tests.benchmarks.report import Report

_OUT = Path(__file__).parent / "out"
OURS = "side_channel"
BARS = (
    # work, what is measured, whose, at most this share of theirs
    ("unpaced_64_c8", "cpu_ms", RAY_DEFAULT, 0.1),
    ("paced_64_c32", "cpu_ms", RAY_DEFAULT, 0.2),
    ("ttft_1000_c1", "first_ms", UVICORN, 3.0),
)
Runs = dict[str, dict[str, list[HttpRun]]]

console = Console(width=140)


def main() -> None:
    arguments = _arguments()
    _OUT.mkdir(exist_ok=True)
    works = [work for work in WORKS if work.name in arguments.works]
    runs: Runs = {work.name: {} for work in works}
    with ExitStack() as stack:
        sides = _start(stack, arguments)
        for work in works:
            for side in sides:
                asyncio.run(run_work(side, work))  # first uses belong to nobody's first round
        for number in range(arguments.rounds):
            for work in works:
                _round(sides, work, runs[work.name], number)
            _report(works, runs).write(_OUT / "http.json")
    report = _report(works, runs)
    report.show(console)
    for bar in report.bars:
        console.print(("holds  " if bar["holds"] else "MISSED ") + f"{bar['bar']}: {bar['measured']}")


def _start(stack: ExitStack, arguments: argparse.Namespace) -> list[Side]:
    console.print("starting uvicorn and up to three Ray clusters")
    sides = [stack.enter_context(uvicorn_side(arguments.model))]
    sides += stack.enter_context(cluster_sides(arguments.model, "haproxy", OUR_TRANSPORTS))
    if {PYTHON_PROXY, RAY_DEFAULT} & set(arguments.sides):
        sides += stack.enter_context(cluster_sides(arguments.model, "python", (PYTHON_PROXY, RAY_DEFAULT)))
    return [side for side in sides if side.name in arguments.sides]


def _round(sides: list[Side], work: HttpWork, runs: dict[str, list[HttpRun]], number: int) -> None:
    for side in sides if number % 2 == 0 else reversed(sides):
        run = asyncio.run(run_work(side, work))
        runs.setdefault(side.name, []).append(run)
        console.print(
            f"  {number + 1} {work.name:<14} {side.name:<12} {run.cpu_ms:7.2f} CPU ms, first {run.first_ms:7.2f}, "
            f"total {run.total_ms:7.2f} ms, {run.num_events / work.num_requests:5.1f} events, "
            f"apart {run.apart_seconds * 1e3 / work.num_requests:6.2f} CPU ms",
            highlight=False,
        )


def _report(works: list[HttpWork], runs: Runs) -> Report:
    report = Report({"cpu": platform.processor() or platform.machine(), "engine": "InstantEngine, no model"})
    for work in works:
        by_side = runs[work.name]
        _check_same_work(work, by_side)
        for measure, unit in (("cpu_ms", "server CPU ms per request"), ("first_ms", "ms to the first token, p50")):
            ratios = {name: _ratios(by_side[OURS], by_side[name], measure) for name in by_side if name != OURS}
            report.add_row(
                f"{work.name}_{measure}",
                unit,
                _median(by_side[OURS], measure),
                ratio={name: [min(each), statistics.median(each), max(each)] for name, each in ratios.items()},
                peers={name: _median(theirs, measure) for name, theirs in by_side.items() if name != OURS},
                same={},
                total_ms_p50={name: _median(theirs, "total_ms") for name, theirs in by_side.items()},
                events_per_request={name: each[0].num_events / work.num_requests for name, each in by_side.items()},
            )
    report.bars = _bars(runs)
    return report


def _bars(runs: Runs) -> list[dict[str, Any]]:
    found = []
    for work, measure, peer, share in BARS:
        by_side = runs.get(work, {})
        if not {OURS, peer} <= set(by_side):
            continue
        ours, theirs = _median(by_side[OURS], measure), _median(by_side[peer], measure)
        measured = f"{ours:.2f} against {theirs:.2f} is {ours / theirs:.3f}"
        found.append({"bar": f"{work} {measure} at most {share} of {peer}", "holds": ours <= share * theirs,
                      "measured": measured})  # fmt: skip
    return found


def _check_same_work(work: HttpWork, by_side: dict[str, list[HttpRun]]) -> None:
    """Every side got as many requests and wrote as many tokens; prompts differ by a few tokens, as their words do."""
    counts = {(len(run.total), run.completion_tokens) for runs in by_side.values() for run in runs}
    if len(counts) != 1:
        raise RuntimeError(f"the sides did not do the same work in {work.name}: {counts}")


def _median(runs: list[HttpRun], measure: str) -> float:
    return statistics.median(getattr(run, measure) for run in runs)


def _ratios(ours: list[HttpRun], theirs: list[HttpRun], measure: str) -> list[float]:
    return [getattr(their, measure) / getattr(our, measure) for our, their in zip(ours, theirs, strict=False)]


def _arguments() -> argparse.Namespace:
    default = Path.home() / ".cache" / "warmlane" / "models" / "SmolLM2-135M-Instruct"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=default, help="folder whose tokenizer and template are used")
    parser.add_argument("--rounds", type=int, default=5)
    sides = (UVICORN, *OUR_TRANSPORTS, PYTHON_PROXY, RAY_DEFAULT)
    parser.add_argument("--sides", nargs="+", choices=sides, default=sides)
    parser.add_argument("--works", nargs="+", choices=[work.name for work in WORKS], default=[w.name for w in WORKS])
    return parser.parse_args()


if __name__ == "__main__":
    main()

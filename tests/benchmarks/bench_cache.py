"""`make bench-cache`: what pages are worth that come from the host's memory, the disk or another replica.

Every row runs its sides in turn, on the same prompts; a ratio above 1 says that ours is better. Bars that do not hold
are printed as such. Writes tests/benchmarks/out/cache.json after every row; a run of some rows keeps the others.
"""

import argparse
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from tests.benchmarks import cache_decide, cache_documents, cache_peers, cache_pressure, cache_restore
from tests.benchmarks.report import Report
from tests.benchmarks.router_sides import PEERS

OUT = Path(__file__).parent / "out"
PAIRS, CLUSTER_ROUNDS = 5, 1
"""Where `--rounds` does not say; a round of whole clusters takes minutes."""
console = Console(width=140)
Part = Callable[[argparse.Namespace, Report], None]


def _host(arguments: argparse.Namespace, report: Report) -> None:
    cache_restore.run_host(arguments.model, arguments.threads, arguments.rounds or PAIRS).report(report)


def _disk(arguments: argparse.Namespace, report: Report) -> None:
    cache_restore.run_disk(arguments.model, arguments.threads, arguments.rounds or PAIRS).report(report)


def _pull(arguments: argparse.Namespace, report: Report) -> None:
    cache_restore.run_pull(arguments.model, arguments.threads, arguments.rounds or PAIRS, OUT).report(report)


def _decide(arguments: argparse.Namespace, report: Report) -> None:
    cache_decide.run_decide(arguments.rounds or PAIRS, report)


def _pressure(arguments: argparse.Namespace, report: Report) -> None:
    cache_pressure.run_pressure(arguments.model, arguments.rounds or CLUSTER_ROUNDS, report)


def _documents(arguments: argparse.Namespace, report: Report) -> None:
    sides = arguments.sides
    cache_documents.run_documents(
        cache_documents.DOCUMENTS, arguments.model, arguments.rounds or CLUSTER_ROUNDS, sides, report
    )


def _documents_8b(arguments: argparse.Namespace, report: Report) -> None:
    sides = [cache_documents.WITHOUT]
    cache_documents.run_documents(
        cache_documents.DOCUMENTS_8B, arguments.model, arguments.rounds or CLUSTER_ROUNDS, sides, report
    )


def _peers_hits(name: str) -> Part:
    def run(arguments: argparse.Namespace, report: Report) -> None:
        cache_peers.run_peers_hits(name, arguments.model, arguments.rounds or CLUSTER_ROUNDS, report)

    return run


PARTS: dict[str, Part] = {
    cache_restore.HOST: _host,
    cache_restore.DISK: _disk,
    cache_restore.PULL: _pull,
    cache_decide.WORK: _decide,
    cache_pressure.WORK: _pressure,
    cache_documents.DOCUMENTS.name: _documents,
    cache_documents.DOCUMENTS_8B.name: _documents_8b,
    cache_peers.SMOLLM2: _peers_hits(cache_peers.SMOLLM2),
    cache_peers.PACED_RUN: _peers_hits(cache_peers.PACED_RUN),
}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    OUT.mkdir(exist_ok=True)
    report = Report({"cpu": platform.processor() or platform.machine(), "threads": arguments.threads})
    report.keep_rows_of(OUT / "cache.json")
    for name in arguments.part:
        started = time.monotonic()
        PARTS[name](arguments, report)
        report.write(OUT / "cache.json")
        console.print(f"{name}: {time.monotonic() - started:.0f} s", highlight=False)
    report.show(console)
    for bar in report.bars:
        console.print(f"{'holds ' if bar['holds'] else 'MISSED'} {bar['bar']}: {bar['measured']}", highlight=False)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    default = Path.home() / ".cache" / "warmlane" / "models" / "SmolLM2-135M-Instruct"
    parser = argparse.ArgumentParser(
        prog="bench-cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=default, help="folder of a transformers model")
    parser.add_argument("--threads", type=int, default=2, help="of an engine that is alone (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, help=f"pairs of each row (default: {PAIRS}, {CLUSTER_ROUNDS} of clusters)"
    )
    parser.add_argument("--part", "--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="rows to measure")
    all_sides = [cache_documents.WITHOUT, *PEERS]
    parser.add_argument("--sides", nargs="+", choices=all_sides, default=all_sides, help="of the row documents")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()

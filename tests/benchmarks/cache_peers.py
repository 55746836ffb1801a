"""The works of `bench_router --part peers` on replicas that take pages from each other: hit tokens, pulls included, and
TTFT p95, against the best other router of each round in front of the same replicas."""

import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.peer_setup import PeerUnavailable
from tests.benchmarks.report import Report
from tests.benchmarks.router_cluster import PACED, PACED_PAGES
from tests.benchmarks.router_rounds import SideRun, problems, run_side
from tests.benchmarks.router_sides import OURS, PEERS, PeerCluster, peer_side
from tests.benchmarks.router_works import WORKS, PeerWork

SMOLLM2, PACED_RUN = "peers_hits", "peers_hits_paced"
_WORKS = {SMOLLM2: "hits", PACED_RUN: "ttft"}
HITS, TTFT = "best_router_hits", "best_router_ttft_p95"
BARS = {HITS: 1.0, TTFT: 1.1}


def run_peers_hits(name: str, model: Path, rounds: int, report: Report) -> None:
    """name: SMOLLM2 or PACED_RUN. Raises RuntimeError where the sides of a round did not do the same work."""
    work = next(work for work in WORKS if work.name == _WORKS[name])
    work = replace(work, engine=PACED_PAGES) if work.engine == PACED else work
    found: list[list[SideRun]] = []
    with PeerCluster(model, work.engine, work.num_blocks, settings={"pull": True}, name=name) as cluster:
        for number in range(rounds):
            found.append(_round(cluster, work, number, report))
            add_row(name, found, report)


def _round(cluster: PeerCluster, work: PeerWork, number: int, report: Report) -> list[SideRun]:
    runs, sides = [], (OURS, *PEERS)
    first = number % len(sides)
    for name in (*sides[first:], *sides[:first]):
        try:
            with nullcontext(cluster.side()) if name == OURS else peer_side(name, cluster, 1) as side:
                runs.append(run_side(side, cluster, work, seed=number))
        except PeerUnavailable as error:
            report.left_out(name, str(error))
    if found := problems(runs, work):
        raise RuntimeError(f"round {number} of {work.name} cannot be compared: {'; '.join(found)}")
    return runs


def ratios(runs: Sequence[SideRun]) -> dict[str, float]:
    """Of one round; the best router in hits may be another than the best in TTFT. Empty without any other router."""
    ours = next(run for run in runs if run.side == OURS)
    theirs = [run for run in runs if run.side != OURS]
    if not theirs:
        return {}
    return {
        HITS: ours.hit_tokens / max(run.hit_tokens for run in theirs),
        TTFT: min(run.ttft_p95 for run in theirs) / ours.ttft_p95,
    }


def add_row(name: str, rounds: Sequence[Sequence[SideRun]], report: Report) -> None:
    each = [ratios(runs) for runs in rounds]
    ours = [run for runs in rounds for run in runs if run.side == OURS]
    best = [max((run.hit_tokens for run in runs if run.side != OURS), default=0) for runs in rounds]
    soonest = [min((run.ttft_p95 for run in runs if run.side != OURS), default=0.0) for runs in rounds]
    report.add_row(
        name, "hit tokens", statistics.median(run.hit_tokens for run in ours),
        ratio={of: _spread([found[of] for found in each]) for of in each[0]},
        peers={HITS: statistics.median(best), TTFT: statistics.median(soonest)},
        same={},
        ttft_p95=statistics.median(run.ttft_p95 for run in ours),
        rounds=[{run.side: run.to_dict() for run in runs} for runs in rounds],
    )  # fmt: skip
    for of in each[0]:
        report.add_bar(f"{name} against {of}", BARS[of], statistics.median(found[of] for found in each))


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]

"""`bench_router --part peers`: our routing and other routers in front of the same four replicas, in turn.

The works (`router_works`): hit tokens with the real model, with caches that hold all and with small ones; and times to
the first token with the real engine whose forward pass is a paced cost model, because four replicas of a real one would
share two cores. Each side starts from emptied caches, each other router as a fresh process; ours keeps its processes
and forgets its index.
"""

import asyncio
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.models.store import resolve_model
from cluster.text.tokenization import ChatTokenizer
from tests.benchmarks.peer_setup import PeerUnavailable
from tests.benchmarks.router_ceiling import most_hit_tokens
from tests.benchmarks.router_cluster import PACED, REAL
from tests.benchmarks.router_rounds import SideRun, problems, run_side
from tests.benchmarks.router_sides import OURS, PEERS, PeerCluster, peer_side
from tests.benchmarks.router_works import WORKS, PeerWork

Row = dict[str, Any]
Verdict = tuple[str, bool, str]


def run_peers(
    out: Path, console: Console, works: Sequence[str], rounds: int, transport: str, add: bool
) -> list[Verdict]:
    """add: goes on from the rounds that `out` already holds. Rows are written after every round.

    Returns for each work whether ours is ahead: the bar, whether it holds, what was measured.
    """
    verdicts = []
    out.parent.mkdir(exist_ok=True)
    model_dir = resolve_model(console=console)
    for work in WORKS:
        if work.name not in works:
            continue
        row = (_stored(out).get(work.name) if add else None) or _empty_row(work, transport)
        if row["transport"] != transport:
            raise ValueError(f"the rounds so far are of transport {row['transport']!r}, got {transport!r}")
        tokenizer = ChatTokenizer(str(model_dir))
        with PeerCluster(model_dir, work.engine, work.num_blocks, transport, work.routers) as cluster:
            for number in range(len(row["rounds"]), len(row["rounds"]) + rounds):
                most = asyncio.run(most_hit_tokens(work.conversations(number), tokenizer))
                _round(cluster, work, number, row, console)
                row["rounds"][-1]["most_hit_tokens"] = most
                _summarise(row)
                _store(out, work.name, row)
        Console(width=max(console.width, 130)).print(_table(row))
        verdicts.append(_verdict(row))
    return verdicts


def _empty_row(work: PeerWork, transport: str) -> Row:
    engine = "SmolLM2-135M in float32, one thread for each of four replicas"
    if work.engine == PACED:
        from tests.benchmarks.paced_replica import PACE

        engine = f"the real engine, its forward pass only waits as long as a cost model says ({PACE.origin})"
    measure = "hit tokens" if work.engine == REAL else "TTFT p95 in seconds"
    return {"work": f"peers_{work.name}", "unit": measure, "engine": engine, "transport": transport, "rounds": []}


def _round(cluster: PeerCluster, work: PeerWork, number: int, row: Row, console: Console) -> None:
    """Every side once, in another order each round, on the same conversations."""
    runs: list[SideRun] = []
    sides = (OURS, *PEERS)
    first = number % len(sides)
    for name in (*sides[first:], *sides[:first]):
        with ExitStack() as stack:
            try:
                side = stack.enter_context(
                    nullcontext(cluster.side()) if name == OURS else peer_side(name, cluster, work.routers)
                )
            except PeerUnavailable as error:
                row.setdefault("left_out", {})[name] = str(error)
                console.print(f"left out: {name}: {error}", style="yellow", markup=False)
                continue
            run = run_side(side, cluster, work, seed=number)
        runs.append(run)
        console.print(
            f"  {number + 1} {work.name} {name:<14} hit {run.hit_tokens / max(1, run.prompt_tokens):.3f}, TTFT p50 "
            f"{run.ttft_p50:.3f} p95 {run.ttft_p95:.3f} s, router {run.router_cpu_ms:.2f} CPU ms, replicas "
            f"{run.replica_cpu_ms:.1f}, busiest/mean {run.busiest_over_mean:.2f}, {run.wall_seconds:.0f} s, "
            f"decisions {dict(run.decisions)}",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    found = problems(runs, work)
    for problem in found:
        console.print(f"NOT COMPARABLE {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    row["rounds"].append({"seed": number, "problems": found, "sides": {run.side: run.to_dict() for run in runs}})


def _summarise(row: Row) -> None:
    """Medians over the rounds, and ratios within each; a round whose sides did unequal work counts as an error."""
    row["errors"] = [problem for each in row["rounds"] for problem in each["problems"]]
    counted = [each for each in row["rounds"] if not each["problems"]]
    good = [each["sides"] for each in counted]
    if not good:
        return
    row["most_hit_share"] = statistics.median(
        each["most_hit_tokens"] / each["sides"][OURS]["prompt_tokens"] for each in counted
    )
    names = [name for name in (OURS, *PEERS) if all(name in sides for sides in good)]
    hits = row["unit"] == "hit tokens"
    measure = "hit_tokens" if hits else "ttft_p95"
    row["ours"] = statistics.median(sides[OURS][measure] for sides in good)
    row["peers"] = {name: statistics.median(sides[name][measure] for sides in good) for name in names if name != OURS}
    row["ratio"] = {}
    for name in row["peers"]:
        pairs = [(sides[OURS][measure], sides[name][measure]) for sides in good]
        ratios = [mine / theirs if hits else theirs / mine for mine, theirs in pairs]
        row["ratio"][name] = [min(ratios), statistics.median(ratios), max(ratios)]
    row["sides"] = {
        name: {key: statistics.median(sides[name][key] for sides in good) for key in _SHOWN}
        | {"hit_share": statistics.median(sides[name]["hit_tokens"] / sides[name]["prompt_tokens"] for sides in good)}
        for name in names
    }


_SHOWN = ("hit_tokens", "prompt_tokens", "ttft_p50", "ttft_p95", "router_cpu_ms", "replica_cpu_ms", "busiest_over_mean")


def _verdict(row: Row) -> Verdict:
    """Holds where the median ratio to every other router is at least 1 and no round was an error."""
    medians = {name: ratio[1] for name, ratio in row.get("ratio", {}).items()}
    holds = bool(medians) and min(medians.values()) >= 1.0 and not row["errors"]
    text = ", ".join(f"{value:.3f} of {name}" for name, value in medians.items()) or "no round counts"
    return f"{row['work']}: ours ahead in {row['unit']}", holds, text


def _stored(out: Path) -> dict[str, Row]:
    return json.loads(out.read_text(encoding="utf-8")).get("peers", {}) if out.exists() else {}


def _store(out: Path, name: str, row: Row) -> None:
    """Leaves everything else in the file as it is."""
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    found.setdefault("peers", {})[name] = row
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _table(row: Row) -> Table:
    table = Table(title=f"{row['work']}: {row['unit']}; {row['engine']}", title_justify="left")
    for name in ("router", "hit share", "ratio min / median / max"):
        table.add_column(name, no_wrap=True)
    for name in ("TTFT p50, s", "p95, s", "router CPU, ms/request", "replicas' CPU", "busiest/mean"):
        table.add_column(name, justify="right")
    for name, found in row.get("sides", {}).items():
        ratio = row["ratio"].get(name)
        table.add_row(
            name,
            f"{found['hit_share']:.3f}",
            " / ".join(f"{value:.3f}" for value in ratio) if ratio else "-",
            f"{found['ttft_p50']:.3f}",
            f"{found['ttft_p95']:.3f}",
            f"{found['router_cpu_ms']:.2f}",
            f"{found['replica_cpu_ms']:.1f}",
            f"{found['busiest_over_mean']:.2f}",
        )
    table.caption = (
        f"{len(row['rounds'])} rounds, {len(row['errors'])} errors; one cache for all would hit "
        f"{row.get('most_hit_share', 0.0):.3f}; a ratio above 1 says that ours is better. Ours "
        "renders and tokenises in its routing processes, behind the other routers the replicas do."
    )
    return table

"""One workload through one router, and what must be equal on all sides of a round."""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.lab.load_client import LoadClient, RequestRecord
from cluster.lab.statistics import percentile
from tests.benchmarks.router_sides import OURS, PeerCluster, RouterSide
from tests.benchmarks.router_works import PeerWork

MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRun:
    """Token counts: the clients' answers, and the replicas' own counters. CPU: ms per request.

    busiest_over_mean: of the prompt tokens that the replicas computed. decisions: the router's own account.
    """

    side: str
    num_requests: int
    errors: list[str]
    prompt_tokens: int
    completion_tokens: int
    hit_tokens: int
    counted_prompt_tokens: int
    counted_generated_tokens: int
    counted_hit_tokens: int
    ttft_p50: float
    ttft_p95: float
    wall_seconds: float
    router_cpu_ms: float
    replica_cpu_ms: float
    busiest_over_mean: float
    decisions: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_side(side: RouterSide, cluster: PeerCluster, work: PeerWork, seed: int) -> SideRun:
    """From emptied caches; the load goes through the router alone."""
    cluster.empty_caches()
    before, decided = cluster.metrics(), side.decisions()
    cpu, replica_cpu, started = side.cpu_seconds(), cluster.replica_cpu_seconds(), time.monotonic()
    records = asyncio.run(_play(side.urls, cluster.api_key, work, seed))
    wall = time.monotonic() - started
    cpu, replica_cpu = side.cpu_seconds() - cpu, cluster.replica_cpu_seconds() - replica_cpu
    grown = cluster.metrics().since(before)
    computed = {
        replica: prompt - grown.total("warmlane_hit_tokens_total", replica=replica)
        for replica, prompt in grown.by_label("warmlane_prompt_tokens_total", "replica").items()
    }
    answered = [record for record in records if record.error is None]
    ttfts = [record.ttft_seconds for record in answered if record.ttft_seconds is not None]
    return SideRun(
        side=side.name,
        num_requests=len(records),
        errors=[record.error for record in records if record.error is not None],
        prompt_tokens=sum(record.prompt_tokens for record in answered),
        completion_tokens=sum(record.completion_tokens for record in answered),
        hit_tokens=sum(record.cached_tokens for record in answered),
        counted_prompt_tokens=int(grown.total("warmlane_prompt_tokens_total")),
        counted_generated_tokens=int(grown.total("warmlane_generated_tokens_total")),
        counted_hit_tokens=int(grown.total("warmlane_hit_tokens_total")),
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        wall_seconds=wall,
        router_cpu_ms=cpu / len(records) * 1e3,
        replica_cpu_ms=replica_cpu / len(records) * 1e3,
        busiest_over_mean=max(computed.values()) / max(1e-9, statistics.mean(computed.values())),
        decisions={
            name: n - decided.get(name, 0.0) for name, n in side.decisions().items() if n > decided.get(name, 0)
        },
    )


async def _play(urls: Sequence[str], api_key: str, work: PeerWork, seed: int) -> list[RequestRecord]:
    async with LoadClient(urls, MODEL, max_tokens=work.new_tokens, api_key=api_key) as client:
        return await client.play(work.conversations(seed), concurrency=work.concurrency, on_record=lambda record: None)


def problems(runs: Sequence[SideRun], work: PeerWork) -> list[str]:
    """Why a round's sides cannot be compared; empty where all did the same work and every count agrees."""
    found = []
    ours = next(run for run in runs if run.side == OURS)
    for run in runs:
        if run.errors:
            found.append(f"{run.side}: {len(run.errors)} of {run.num_requests} failed, the first with {run.errors[0]}")
        counts = (run.prompt_tokens, run.completion_tokens)
        if counts != (ours.prompt_tokens, ours.completion_tokens):
            found.append(
                f"{run.side}: {counts} prompt and completion tokens, ours {ours.prompt_tokens, ours.completion_tokens}"
            )
        counted = (run.counted_prompt_tokens, run.counted_generated_tokens, run.counted_hit_tokens)
        if counted != (*counts, run.hit_tokens):
            found.append(f"{run.side}: answers say {(*counts, run.hit_tokens)} tokens, the replicas counted {counted}")
        if "missing_tokens" in run.decisions:
            found.append(f"{run.side}: {run.decisions['missing_tokens']:.0f} decisions without a prefix: a fallback")
        decided = sum(n for name, n in run.decisions.items() if run.side == OURS or name == "cache_aware")
        if run.side in (OURS, "sglang-router", "smg") and decided != work.num_requests:
            found.append(f"{run.side}: it says it decided {decided:.0f} of {work.num_requests} requests by its policy")
    return found

"""Prefill that a fleet computes whose pools hold a tenth of what is asked for again: with memory for what they evict,
against without.

The customers of `sgd` all talk at once, so that whatever a talk has said is long evicted when its next turn comes. Both
fleets are asked the same in the same order; their greedy answers must be equal.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx
from tokenizers import Tokenizer

from cache.block_hasher import BlockHasher
from cluster.lab.session_order import interleave
from cluster.lab.trace import TraceRequest
from cluster.lab.trace_files import load_trace
from tests.benchmarks.report import Report
from tests.benchmarks.router_cluster import NUM_REPLICAS, REAL
from tests.benchmarks.router_rounds import MODEL
from tests.benchmarks.router_sides import PeerCluster

WORK, WITHOUT, BAR = "pressure", "no_tiers", 2.0
TRACE, BLOCK_SIZE, NEW_TOKENS = "sgd", 16, 2
OVER_POOLS = 10
CONCURRENCY = 4
HOST_BYTES = 2**30
"""Of each replica; a block of SmolLM2 in float32 takes 720 KiB."""
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class FleetRun:
    """computed_tokens: of prefill, by the replicas' own counters. hits: tokens by tier."""

    texts: list[str]
    prompt_tokens: int
    computed_tokens: int
    hits: dict[str, int]


def talks(model: Path, seed: int) -> list[TraceRequest]:
    """Every session's turns in their order, all sessions at once."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    trace = load_trace(TRACE, tokenize=lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    sessions: dict[str, list[TraceRequest]] = {}
    for request in trace.requests:
        sessions.setdefault(request.session, []).append(request)
    return interleave(list(sessions.values()), Random(f"{WORK} {seed}"), num_open=len(sessions))


def num_unique_blocks(requests: Sequence[TraceRequest]) -> int:
    hasher = BlockHasher(bytes(16), "", BLOCK_SIZE)
    return len({key for request in requests for key in hasher.keys(request.prompt_ids)})


def run_pressure(model: Path, rounds: int, report: Report) -> None:
    """Raises RuntimeError where the two sides did not answer the same."""
    ours, theirs = [], []
    num_blocks = num_unique_blocks(talks(model, 0)) // OVER_POOLS // NUM_REPLICAS
    for number in range(rounds):
        requests = talks(model, number)
        ours.append(_run(model, num_blocks, requests, HOST_BYTES))
        theirs.append(_run(model, num_blocks, requests, 0))
        for mine, their in zip(ours, theirs, strict=True):
            if mine.texts != their.texts or mine.prompt_tokens != their.prompt_tokens:
                different = sum(a != b for a, b in zip(mine.texts, their.texts, strict=True))
                raise RuntimeError(f"{WORK}: {different} of {len(requests)} answers differ")
        ratios = [their.computed_tokens / mine.computed_tokens for mine, their in zip(ours, theirs, strict=True)]
        report.add_row(
            WORK, "tokens of prefill computed", statistics.median(run.computed_tokens for run in ours),
            ratio={WITHOUT: [min(ratios), statistics.median(ratios), max(ratios)]},
            peers={WITHOUT: statistics.median(run.computed_tokens for run in theirs)},
            same={WITHOUT: [len(requests) * len(ours)] * 2},
            trace=TRACE, replicas=NUM_REPLICAS, blocks_per_replica=num_blocks, rounds=len(ours),
            prompt_tokens=ours[-1].prompt_tokens, hits=ours[-1].hits, hits_without=theirs[-1].hits,
        )  # fmt: skip
        report.add_bar(f"{WORK} against {WITHOUT}", BAR, statistics.median(ratios))


def _run(model: Path, num_blocks: int, requests: Sequence[TraceRequest], host_kv_memory: int) -> FleetRun:
    settings = {"host_kv_memory": host_kv_memory, "max_model_len": num_blocks * BLOCK_SIZE}
    with PeerCluster(model, REAL, num_blocks, settings=settings, name=WORK) as cluster:
        before = cluster.metrics()
        texts = asyncio.run(_play(cluster.url, requests))
        grown = cluster.metrics().since(before)
    hits = {tier: int(tokens) for tier, tokens in grown.by_label("warmlane_hit_tokens_total", "tier").items()}
    prompt_tokens = int(grown.total("warmlane_prompt_tokens_total"))
    if prompt_tokens != sum(len(request.prompt_ids) for request in requests):
        raise RuntimeError(f"{WORK}: the replicas counted {prompt_tokens} prompt tokens")
    recomputed = int(grown.total("warmlane_recomputed_tokens_total"))
    return FleetRun(texts, prompt_tokens, prompt_tokens - sum(hits.values()) + recomputed, hits)


async def _play(url: str, requests: Sequence[TraceRequest]) -> list[str]:
    """Closed loop, in order; a turn is asked when the one before it has its answer."""
    texts = [""] * len(requests)
    waiting = iter(enumerate(requests))
    said: dict[str, asyncio.Event] = {}
    async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:

        async def user() -> None:
            for number, request in waiting:
                before, done = said.get(request.session), asyncio.Event()
                said[request.session] = done
                if before is not None:
                    await before.wait()
                texts[number] = await _ask(client, url, request)
                done.set()

        async with asyncio.TaskGroup() as users:
            for _ in range(CONCURRENCY):
                users.create_task(user())
    return texts


async def _ask(client: httpx.AsyncClient, url: str, request: TraceRequest) -> str:
    body = {
        "model": MODEL, "prompt": list(request.prompt_ids), "max_tokens": NEW_TOKENS, "temperature": 0.0,
        "ignore_eos": True,
    }  # fmt: skip
    response = await client.post(f"{url}/v1/completions", json=body)
    return str(response.raise_for_status().json()["choices"][0]["text"])

"""Documents of which bursts of questions are asked: TTFT of a fleet whose replicas copy pages from each other, against
the same fleet without, and against other routers in front of the same replicas.

The engines are real but for their forward pass, which takes as long as a large model's would (`paced_pages`). Requests
come when they come (open loop): a document is opened by one question, then come bursts of questions, each with notes of
its own, more than the replica that holds the document can answer at once.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from cluster.lab.conversations import Message
from cluster.lab.load_client import LoadClient, RequestRecord
from cluster.lab.statistics import percentile
from tests.benchmarks.peer_setup import PeerUnavailable
from tests.benchmarks.report import Report
from tests.benchmarks.router_cluster import PACED_8B, PACED_70B
from tests.benchmarks.router_rounds import MODEL
from tests.benchmarks.router_sides import OURS, PEERS, PeerCluster, RouterSide, peer_side
from tests.benchmarks.router_works import random_text

WITHOUT = "no_pull"
NUM_BLOCKS = 2800
"""Ten documents and their questions on each replica; four GPUs beside a 70B model would hold a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsWork:
    """bars: least median ratio against no_pull, and against each other router; None: only printed.

    A document is opened every `every_seconds`; its bursts of `questions` come so many seconds later.
    """

    name: str
    engine: str
    bars: tuple[float, float] | None
    documents: int = 12
    document_words: int = 4000
    every_seconds: float = 2.0
    bursts_after: tuple[float, ...] = (4.0, 7.0)
    questions: int = 20
    question_words: tuple[int, int] = (150, 250)
    new_tokens: int = 8

    def arrivals(self, seed: int) -> list[tuple[float, list[Message]]]:
        """(seconds, messages), in the order of the seconds; the same for the same seed."""
        rng = Random(f"documents {seed}")
        found = []
        for number in range(self.documents):
            system: Message = {"role": "system", "content": random_text(rng, self.document_words)}
            opened = number * self.every_seconds
            bursts = [(opened, 1)] + [(opened + after + rng.random(), self.questions) for after in self.bursts_after]
            for at, num_questions in bursts:
                for _ in range(num_questions):
                    question = random_text(rng, rng.randint(*self.question_words))
                    found.append((at, [system, {"role": "user", "content": question}]))
        return sorted(found, key=lambda each: each[0])


DOCUMENTS = DocumentsWork(name="documents", engine=PACED_70B, bars=(1.5, 1.3))
DOCUMENTS_8B = DocumentsWork(name="documents_8b", engine=PACED_8B, bars=None)


@dataclass(frozen=True, slots=True)
class DocumentsRun:
    """hits: tokens by tier, as the replicas counted them. late_seconds: the most that a request was sent too late."""

    mean_ttft: float
    ttft_p50: float
    ttft_p95: float
    prompt_tokens: int
    completion_tokens: int
    hits: dict[str, float]
    late_seconds: float


def run_documents(
    work: DocumentsWork, model: Path, rounds: int, sides: Sequence[str], report: Report
) -> dict[str, list[DocumentsRun]]:
    """Every side once a round, in another order each time, from emptied caches. Both fleets are up all the time."""
    runs: dict[str, list[DocumentsRun]] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(_fleet(work, model, OURS, pull=True))
        without = stack.enter_context(_fleet(work, model, WITHOUT, pull=False)) if WITHOUT in sides else ours
        for number in range(rounds):
            names = [name for name in (OURS, *sides) if name not in left_out]
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                cluster = without if name == WITHOUT else ours
                try:
                    with peer_side(name, cluster, 1) if name in PEERS else nullcontext(cluster.side()) as side:
                        runs.setdefault(name, []).append(_run(side, cluster, work, number))
                except PeerUnavailable as error:
                    left_out[name] = str(error)
                    report.left_out(name, str(error))
            _report(work, runs, report)
    return runs


def _fleet(work: DocumentsWork, model: Path, name: str, pull: bool) -> PeerCluster:
    return PeerCluster(model, work.engine, NUM_BLOCKS, settings={"pull": pull}, name=f"{work.name}-{name}")


def _run(side: RouterSide, cluster: PeerCluster, work: DocumentsWork, seed: int) -> DocumentsRun:
    cluster.empty_caches()
    before = cluster.metrics()
    records, late_seconds = asyncio.run(_play(side, cluster.api_key, work, seed))
    grown = cluster.metrics().since(before)
    errors = [record.error for record in records if record.error is not None]
    if errors:
        raise RuntimeError(f"{side.name}: {len(errors)} of {len(records)} requests failed, the first with {errors[0]}")
    ttfts = [record.ttft_seconds for record in records if record.ttft_seconds is not None]
    return DocumentsRun(
        mean_ttft=statistics.mean(ttfts),
        ttft_p50=percentile(ttfts, 50),
        ttft_p95=percentile(ttfts, 95),
        prompt_tokens=sum(record.prompt_tokens for record in records),
        completion_tokens=sum(record.completion_tokens for record in records),
        hits=dict(grown.by_label("warmlane_hit_tokens_total", "tier")),
        late_seconds=late_seconds,
    )


async def _play(side: RouterSide, api_key: str, work: DocumentsWork, seed: int) -> tuple[list[RequestRecord], float]:
    late_seconds = 0.0
    async with LoadClient(side.urls, MODEL, max_tokens=work.new_tokens, api_key=api_key) as client:
        started = time.monotonic()

        async def ask(at: float, messages: list[Message]) -> RequestRecord:
            nonlocal late_seconds
            await asyncio.sleep(started + at - time.monotonic())
            late_seconds = max(late_seconds, time.monotonic() - started - at)
            return await client.chat(messages)

        return list(await asyncio.gather(*(ask(*each) for each in work.arrivals(seed)))), late_seconds


def _report(work: DocumentsWork, runs: dict[str, list[DocumentsRun]], report: Report) -> None:
    """Raises RuntimeError where the sides of a round did not do the same work, or ours pulled nothing though there are
    bars."""
    if work.bars is not None and not all(run.hits.get("peer") for run in runs[OURS]):
        raise RuntimeError(f"{work.name}: no page came from another replica: {runs[OURS]}")
    for number, each in enumerate(zip(*runs.values(), strict=False)):
        if len({(run.prompt_tokens, run.completion_tokens) for run in each}) != 1:
            raise RuntimeError(f"round {number}: the sides did unequal work: {list(zip(runs, each, strict=True))}")
    ratios = {
        name: [their.mean_ttft / mine.mean_ttft for mine, their in zip(runs[OURS], theirs, strict=False)]
        for name, theirs in runs.items()
        if name != OURS
    }
    report.add_row(
        work.name, "s to the first token, mean", _median(runs[OURS], "mean_ttft"),
        ratio={name: [min(each), statistics.median(each), max(each)] for name, each in ratios.items()},
        peers={name: _median(runs[name], "mean_ttft") for name in ratios},
        same={},
        engine=work.engine,
        sides={name: [asdict(run) for run in each] for name, each in runs.items()},
    )  # fmt: skip
    if work.bars is not None:
        for name, each in ratios.items():
            at_least = work.bars[0] if name == WITHOUT else work.bars[1]
            report.add_bar(f"{work.name} against {name}", at_least, statistics.median(each))


def _median(runs: Sequence[DocumentsRun], measure: str) -> float:
    values: list[Any] = [getattr(run, measure) for run in runs]
    return float(statistics.median(values))

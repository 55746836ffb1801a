"""TTFT of a prompt whose pages come from the host's memory, the disk or another replica, against computing them.

One idle engine does both, in turn, on the same prompts; the answers must be equal, and all of the prompt's full pages
must have come from where the row says.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tests.benchmarks.cache_engine import Answer, AskedEngine, Giver
from tests.benchmarks.report import Report

RECOMPUTE, OVER_TCP = "recompute", "recompute, over TCP"
HOST, DISK, PULL = "host_restore_1000", "disk_restore_1000", "pull_1000"
BARS = {HOST: 10.0, DISK: 6.0, PULL: 8.0}
REUSABLE_TOKENS, NEW_TOKENS = 1008, 8
"""63 pages of 16 tokens; one more token is always computed."""
POOL_BLOCKS = 64
"""One prompt with its answer takes them all, so that nothing of the one before is left."""
WRITE_SECONDS = 60.0


@dataclass(slots=True)
class RestorePairs:
    """(pages came, computed), by what the pages came over."""

    work: str
    tier: str
    pairs: dict[str, list[tuple[Answer, Answer]]] = field(default_factory=dict)

    def add(self, peer: str, came: Answer, computed: Answer) -> None:
        """Raises RuntimeError where the two sides did not do what the row says."""
        if came.loaded != {self.tier: REUSABLE_TOKENS} or came.hit_tokens != REUSABLE_TOKENS:
            raise RuntimeError(f"{self.work}: {REUSABLE_TOKENS} tokens of {self.tier} expected, got {came}")
        if computed.loaded or computed.hit_tokens:
            raise RuntimeError(f"{self.work}: computing took {computed.hit_tokens} tokens from a cache")
        if came.token_ids != computed.token_ids:
            raise RuntimeError(f"{self.work}: {came.token_ids} against {computed.token_ids}")
        self.pairs.setdefault(peer, []).append((came, computed))

    def report(self, report: Report) -> None:
        ratios = {
            peer: [computed.seconds / came.seconds for came, computed in pairs] for peer, pairs in self.pairs.items()
        }
        came = {peer: _median_ms([each for each, _ in pairs]) for peer, pairs in self.pairs.items()}
        report.add_row(
            self.work,
            "ms to the first token",
            came[RECOMPUTE],
            ratio={peer: [min(each), statistics.median(each), max(each)] for peer, each in ratios.items()},
            peers={peer: _median_ms([each for _, each in pairs]) for peer, pairs in self.pairs.items()},
            same={peer: [len(pairs), len(pairs)] for peer, pairs in self.pairs.items()},
            hit_tokens=REUSABLE_TOKENS,
            tier=self.tier,
            ours_by_way=came,
        )
        report.add_bar(f"{self.work} against {RECOMPUTE}", BARS[self.work], statistics.median(ratios[RECOMPUTE]))


def run_host(model: Path, threads: int, rounds: int) -> RestorePairs:
    found = RestorePairs(HOST, "host")
    with AskedEngine(model, threads, num_blocks=POOL_BLOCKS, host_kv_memory=2**30) as engine:
        for prompt, other in _prompts(rounds, 2):
            computed = engine.ask(prompt, NEW_TOKENS)
            engine.ask(other, NEW_TOKENS)  # takes the place of its pages
            found.add(RECOMPUTE, engine.ask(prompt, NEW_TOKENS), computed)
    return found


def run_disk(model: Path, threads: int, rounds: int) -> RestorePairs:
    """Without memory of the host in between, and with the files out of the system's own cache when they are read."""
    found = RestorePairs(DISK, "disk")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wl-")))
        disk = {"disk_kv_folder": str(folder), "disk_kv_size": 2**31, "disk_kv_write_rate": 2**30}
        engine = stack.enter_context(AskedEngine(model, threads, num_blocks=POOL_BLOCKS, **disk))
        for prompt, other, another in _prompts(rounds, 3):
            computed = engine.ask(prompt, NEW_TOKENS)
            engine.ask(other, NEW_TOKENS)
            engine.ask(prompt, NEW_TOKENS)  # used again, so that the disk takes it when it is evicted once more
            engine.ask(another, NEW_TOKENS)
            _wait_written(engine, prompt)
            _forget_files(folder)
            found.add(RECOMPUTE, engine.ask(prompt, NEW_TOKENS), computed)
    return found


def run_pull(model: Path, threads: int, rounds: int, out: Path) -> RestorePairs:
    """From an engine in another process that has computed it: over memory that both share, and over TCP."""
    found = RestorePairs(PULL, "peer")
    settings = {"num_blocks": 256, "pull": True}
    with Giver(model, threads, out / "cache_giver.log") as giver, AskedEngine(model, threads, **settings) as engine:
        ways = {RECOMPUTE: giver.address, OVER_TCP: replace(giver.address, local="")}
        (first,) = next(_prompts(1, 1, seed=7))
        giver.ask(first, 1)
        for source in ways.values():  # the first pull of a pair of replicas opens their connection
            engine.reset()
            engine.ask(first, 1, source)
        for number, (prompt,) in enumerate(_prompts(rounds, 1)):
            theirs = giver.ask(prompt, NEW_TOKENS)
            sides: list[str | None] = [*ways, None]
            answers = {}
            for side in sides[number % 3 :] + sides[: number % 3]:
                engine.reset()
                answers[side] = engine.ask(prompt, NEW_TOKENS, ways[side] if side is not None else None)
            if theirs.token_ids != answers[None].token_ids:
                raise RuntimeError(f"the giver says {theirs.token_ids}, the taker {answers[None].token_ids}")
            for way in ways:
                found.add(way, answers[way], answers[None])
    return found


def _prompts(rounds: int, each: int, seed: int = 1) -> Iterator[list[list[int]]]:
    rng = Random(seed)
    for _ in range(rounds):
        yield [rng.choices(range(1000, 40_000), k=REUSABLE_TOKENS + 1) for _ in range(each)]


def _median_ms(answers: list[Answer]) -> float:
    return statistics.median(each.seconds for each in answers) * 1e3


def _wait_written(engine: AskedEngine, prompt: list[int]) -> None:
    deadline = time.monotonic() + WRITE_SECONDS
    while engine.tiers_of(prompt) != {"disk"}:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{WRITE_SECONDS:.0f} s passed, but the disk does not hold the prompt")
        time.sleep(0.05)


def _forget_files(folder: Path) -> None:
    """The system reads them from the device the next time."""
    for path in folder.rglob("*.page"):
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

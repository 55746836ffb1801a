"""CPU of a routing decision: with pulls from other replicas considered, against without, on the same prompts."""

import statistics
import time
from collections.abc import Sequence
from random import Random

from cache.wire.records import ReplicaLoad, ReplicaRegistration
from router.decision import RouteRequest
from router.decision_maker import DecisionMaker
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.policies.registry import make_policy
from router.router_state import RouterState
from tests.benchmarks.report import Report
from tests.benchmarks.router_micro import HASHER

WORK, WITHOUT, BAR = "decide_4x64", "without_pulls", 0.8
NUM_REPLICAS, NUM_BLOCKS, NUM_PROMPTS = 4, 64, 400
BLOCK_BYTES = 737_280
"""Of SmolLM2 in float32."""


class Decider:
    """Each replica holds another share of what all prompts have in common, so that all but one could pull."""

    def __init__(self, shared: Sequence[int], pulls: bool):
        state = RouterState(IndexMirror())
        self._names = frozenset(f"replica-{number}" for number in range(NUM_REPLICAS))
        keys = HASHER.keys(shared)
        for number, name in enumerate(sorted(self._names)):
            pages_at = f"127.0.0.1 {9000 + number} " if pulls else ""
            registration = ReplicaRegistration(
                name, f"{number:032x}", HASHER.canary, 16, 4096, 0.0, pages_at=pages_at, block_bytes=BLOCK_BYTES
            )
            slot = state.load_slot(keys[: len(keys) * number // (NUM_REPLICAS - 1)])
            state.adopt(registration, slot, 0.0)
            load = ReplicaLoad(number, 1, 100 * number, 2000, 4096, 400.0, 0.1, num_room_blocks=1500)
            state.on_heartbeat(name, load, 0.0)
        self._maker = DecisionMaker(HASHER, state, Random(3), 8192, lambda: None)
        self._policy = make_policy("expected_finish")
        self.num_pulls = 0

    def seconds(self, prompt: Sequence[int]) -> float:
        """CPU of one decision."""
        request = RouteRequest("r", prompt, 64)
        started = time.thread_time()
        decision = self._maker.decide(request, self._policy, self._names, Rung.FRESH, 1.0)
        taken = time.thread_time() - started
        self.num_pulls += decision.pull_tokens > 0
        return taken


def run_decide(rounds: int, report: Report) -> None:
    """Raises RuntimeError where pulls were not considered on the one side alone."""
    rng = Random(3)
    shared = rng.choices(range(50_000), k=8 * NUM_BLOCKS)
    prompts = [shared + rng.choices(range(50_000), k=8 * NUM_BLOCKS) for _ in range(NUM_PROMPTS)]
    with_pulls, without = Decider(shared, pulls=True), Decider(shared, pulls=False)
    ours, theirs = [], []
    for number in range(rounds + 1):
        pairs = [(with_pulls.seconds(prompt), without.seconds(prompt)) for prompt in prompts]
        if number:  # the first one belongs to nobody
            ours.append(statistics.median(mine for mine, _ in pairs))
            theirs.append(statistics.median(their for _, their in pairs))
    if not with_pulls.num_pulls or without.num_pulls:
        raise RuntimeError(f"{with_pulls.num_pulls} and {without.num_pulls} decisions with a pull")
    ratios = [their / mine for mine, their in zip(ours, theirs, strict=True)]
    report.add_row(
        WORK, "us of CPU", statistics.median(ours) * 1e6,
        ratio={WITHOUT: [min(ratios), statistics.median(ratios), max(ratios)]},
        peers={WITHOUT: statistics.median(theirs) * 1e6},
        same={},
        decided_to_pull=with_pulls.num_pulls / (NUM_PROMPTS * (rounds + 1)),
    )  # fmt: skip
    report.add_bar(f"{WORK} against {WITHOUT}", BAR, statistics.median(ratios))

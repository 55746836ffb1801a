"""Small workloads and fleets for the tests of the simulator."""

from collections.abc import Sequence
from random import Random

from cluster.lab.arrival_plan import OpenLoop
from cluster.lab.cost_model import CostModel
from cluster.lab.fleet import Fleet, FleetResult
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import lab_hasher
from cluster.lab.synthetic_prefixes import SyntheticPrefixes
from cluster.lab.trace import Trace, TraceRequest

COSTS = CostModel(
    origin="round numbers for tests",
    step_seconds=0.01,
    prefill_token_seconds=0.001,
    decode_request_seconds=0.002,
    decode_context_seconds=1e-6,
)


def sessions(num_requests: int = 120, seed: int = 1, answer_tokens: int = 40) -> Trace:
    shape = SyntheticPrefixes(
        groups=4, users=8, turns=4, system_tokens=128, question_tokens=40, answer_tokens=answer_tokens
    )
    return shape.trace(seed, num_requests)


def unique_prompts(count: int, length: int, new_tokens: int = 4) -> Trace:
    rng = Random(5)
    return Trace("unique", [TraceRequest(rng.choices(range(1000), k=length), new_tokens) for _ in range(count)])


def simulate(
    trace: Trace,
    config: FleetConfig,
    policy: str = "expected_finish",
    rate: float = 20.0,
    seed: int = 1,
    times: Sequence[float] | None = None,
) -> FleetResult:
    plan = OpenLoop.at_rate(trace, rate, seed) if times is None else OpenLoop(times)
    return Fleet(config, COSTS, lab_hasher(config.block_size), policy, seed=seed).run(trace, plan)

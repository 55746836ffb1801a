"""What no router can reach: all replicas as one machine with one cache."""

from dataclasses import dataclass, replace

from cache.block_hasher import BlockHasher
from cluster.lab.arrival_plan import ClosedLoop
from cluster.lab.cost_model import CostModel
from cluster.lab.fleet import Fleet
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.trace import Trace

REQUESTS_AT_ONCE = 16
"""For each replica of the fleet: enough to keep every step full."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """requests_per_second: what the oracle serves when it is never idle. hit_tokens: of the whole trace."""

    requests_per_second: float
    hit_tokens: int


def saturation(trace: Trace, config: FleetConfig, cost_model: CostModel, hasher: BlockHasher) -> Saturation:
    """One replica that is as fast as all of `config` together, with the sum of their pages and batches.

    The requests come in the trace's order, as many at once as keep it busy. Noise and delay are left out.
    """
    number = config.num_replicas
    speed = number - config.num_slow_replicas + config.num_slow_replicas / config.slowness
    pooled = replace(
        config,
        num_replicas=1,
        num_blocks=config.num_blocks * number,
        max_num_seqs=config.max_num_seqs * number,
        max_num_batched_tokens=config.max_num_batched_tokens * number,
        num_routers=1,
        step_noise=0.0,
        event_loss=0.0,
        index_delay_seconds=0.0,
        num_slow_replicas=0,
    )
    faster = replace(
        cost_model,
        step_seconds=cost_model.step_seconds / speed,
        prefill_token_seconds=cost_model.prefill_token_seconds / speed,
        prefill_pair_seconds=cost_model.prefill_pair_seconds / speed,
        decode_request_seconds=cost_model.decode_request_seconds / speed,
        decode_context_seconds=cost_model.decode_context_seconds / speed,
    )
    alone = Trace(trace.name, [replace(request, session="") for request in trace.requests])
    fleet = Fleet(pooled, faster, hasher, "round_robin")
    result = fleet.run(alone, ClosedLoop(alone, REQUESTS_AT_ONCE * number))
    return Saturation(
        len(result.outcomes) / result.makespan_seconds, sum(outcome.hit_tokens for outcome in result.outcomes)
    )

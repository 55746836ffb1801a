"""One line-up for a comparison: a trace, a fleet and how hard it is driven."""

import math
from dataclasses import dataclass, replace

from cache.block_hasher import BlockHasher
from cluster.lab.arrival_plan import ArrivalPlan, ClosedLoop, OpenLoop
from cluster.lab.cost_model import CostModel
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.pooled_oracle import saturation
from cluster.lab.session_order import reordered
from cluster.lab.trace import Trace

REQUESTS_TO_SPARE = 4
"""Of the longest, on top of everything, in a cache that is to forget nothing."""


def lab_hasher(block_size: int) -> BlockHasher:
    """Keys of a simulation need no secret; they must be the same in every run."""
    return BlockHasher(bytes(16), "warmlane lab", block_size)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """num_blocks: of each replica. share: of the trace's unique blocks that the fleet holds together.

    at_floor: whether it was raised, because at the share that was asked for the longest request would not fit.
    """

    num_blocks: int
    share: float
    at_floor: bool
    num_unique_blocks: int = 0

    def of_fleet(self, config: FleetConfig) -> FleetConfig:
        """With these caches, and host memory where a share of it is asked for."""
        host_blocks = config.host_blocks
        if config.host_share:
            host_blocks = math.ceil(config.host_share * self.num_unique_blocks / config.num_replicas)
        return replace(config, num_blocks=self.num_blocks, host_blocks=host_blocks)

    @classmethod
    def of(cls, trace: Trace, config: FleetConfig, share: float | None, raise_share: bool = False) -> "CacheSize":
        """share: None holds everything. raise_share: take the smallest share that serves all requests if that is more.

        Raises ValueError where a replica cannot hold the longest request, and the share may not be raised.
        """
        unique = trace.num_unique_blocks(lab_hasher(config.block_size))
        longest = -(-trace.longest_tokens // config.block_size)
        least = max(2, longest)
        answers = sum(-(-request.num_new_tokens // config.block_size) + 1 for request in trace.requests)
        everything = unique + answers + REQUESTS_TO_SPARE * longest
        asked_for = everything if share is None else min(everything, math.ceil(share * unique / config.num_replicas))
        num_blocks = max(asked_for, least)
        if num_blocks > asked_for and unique and not raise_share:  # where no prompt fills a block a share says nothing
            enough = math.ceil(1e4 * least * config.num_replicas / unique) / 1e4
            raise ValueError(
                f"a cache share of {share:g} gives each of {config.num_replicas} replicas {asked_for} of the "
                f"{unique:,} unique blocks, and the longest request needs {least}: at least {enough:g}, fewer "
                "replicas or more requests"
            )
        got = num_blocks * config.num_replicas / max(1, unique)
        return cls(num_blocks, got, num_blocks > asked_for, unique)


@dataclass(frozen=True)
class Scenario:
    """rate: requests per second, open loop; None: closed loop of `concurrency` users. load: rate over what the pooled
    oracle serves, where that was asked for. oracle_hit_tokens: hits of the oracle, 0 where it was not run."""

    trace: Trace
    config: FleetConfig
    cost_model: CostModel
    cache: CacheSize
    rate: float | None = None
    load: float | None = None
    concurrency: int = 16
    think_seconds: float = 0.0
    oracle_hit_tokens: int = 0

    @classmethod
    def at_load(
        cls,
        trace: Trace,
        config: FleetConfig,
        cost_model: CostModel,
        cache_share: float | None,
        load: float,
        raise_share: bool = False,
    ) -> "Scenario":
        """load: 0.8 sends 80 % of the requests per second at which the pooled oracle saturates."""
        if not load > 0.0:
            raise ValueError(f"load must be above 0, got {load}")
        cache = CacheSize.of(trace, config, cache_share, raise_share)
        config = cache.of_fleet(config)
        full = saturation(trace, config, cost_model, lab_hasher(config.block_size))
        rate = load * full.requests_per_second
        return cls(trace, config, cost_model, cache, rate, load, oracle_hit_tokens=full.hit_tokens)

    @classmethod
    def at_rate(
        cls,
        trace: Trace,
        config: FleetConfig,
        cost_model: CostModel,
        cache_share: float | None,
        rate: float,
        raise_share: bool = False,
    ) -> "Scenario":
        cache = CacheSize.of(trace, config, cache_share, raise_share)
        return cls(trace, cache.of_fleet(config), cost_model, cache, rate)

    @classmethod
    def closed(
        cls,
        trace: Trace,
        config: FleetConfig,
        cost_model: CostModel,
        cache_share: float | None,
        concurrency: int,
        think_seconds: float = 0.0,
        raise_share: bool = False,
    ) -> "Scenario":
        cache = CacheSize.of(trace, config, cache_share, raise_share)
        config = cache.of_fleet(config)
        return cls(trace, config, cost_model, cache, concurrency=concurrency, think_seconds=think_seconds)

    @property
    def label(self) -> str:
        """`trace@replicas@load`; a rate or the closed loop stand in the place of the load."""
        drive = f"{self.load:g}" if self.load is not None else f"{self.rate:g}rps" if self.rate is not None else None
        return f"{self.trace.name}@{self.config.num_replicas}@{drive or f'closed{self.concurrency}'}"

    @property
    def num_users(self) -> int:
        """Of a closed loop: each needs a session of its own."""
        return min(self.concurrency, self.trace.num_sessions)

    @property
    def arrivals(self) -> str:
        """When requests are sent, in a word for reports."""
        if self.rate is None:
            return "closed loop"
        return "recorded times, stretched" if self.trace.recorded_seconds > 0.0 else "Poisson"

    def trace_of(self, seed: int) -> Trace:
        """What a run with the seed plays: recorded times give the order, else the seed does."""
        recorded = self.rate is not None and self.trace.recorded_seconds > 0.0
        return self.trace if recorded else reordered(self.trace, seed)

    def plan(self, trace: Trace, seed: int) -> ArrivalPlan:
        """trace: of the same seed."""
        if self.rate is not None:
            return OpenLoop.at_rate(trace, self.rate, seed)
        return ClosedLoop(trace, self.concurrency, self.think_seconds, seed)

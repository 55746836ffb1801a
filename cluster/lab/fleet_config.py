"""What a simulated fleet is like."""

from dataclasses import dataclass

from cache.eviction import EVICTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """num_blocks: KV blocks of each replica.

    index_delay_seconds: from a change in a replica (blocks, load) until a router knows it. event_loss: share of the
    event batches that never arrive; the router finds the gap and loads a snapshot. transit_seconds: one way between
    ingress and replica. step_noise: standard deviation of a step's time as a share of it.
    host_blocks: of each replica's memory, for what its pool evicts; host_share: the same as a share of the trace's
    unique blocks over the fleet, for `Scenario` to work out. host_bytes_per_second: how fast they come back.
    pull: whether replicas take pages from each other. link_bytes_per_second, link_seconds: of each one's way out and
    in, and until the first page comes.
    num_slow_replicas, slowness: so many replicas take so many times longer for a step.
    eviction: which cached pages of a replica go first, one of `cache.eviction.EVICTIONS`.
    jump: leap over decode steps in which nothing else happens; the results are the same.
    """

    num_replicas: int = 4
    num_blocks: int = 4096
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    watermark: float = 0.01
    num_routers: int = 1
    index_delay_seconds: float = 0.05
    event_loss: float = 0.0
    transit_seconds: float = 0.005
    step_noise: float = 0.0
    num_slow_replicas: int = 0
    slowness: float = 1.3
    jump: bool = True
    host_blocks: int = 0
    host_share: float = 0.0
    host_bytes_per_second: float = 4e9
    pull: bool = False
    link_bytes_per_second: float = 1.25e9  # 10 Gbit/s
    link_seconds: float = 0.005
    eviction: str = "lru"

    def __post_init__(self) -> None:
        for name, least in (("num_replicas", 1), ("num_blocks", 2), ("max_num_seqs", 1), ("num_routers", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("host_bytes_per_second", "link_bytes_per_second"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("host_blocks", "host_share"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name in ("index_delay_seconds", "transit_seconds", "step_noise", "link_seconds"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.eviction not in EVICTIONS:
            raise ValueError(f"eviction must be one of {', '.join(EVICTIONS)}, got {self.eviction!r}")
        if not 0.0 <= self.event_loss < 1.0:
            raise ValueError(f"event_loss must be at least 0 and below 1, got {self.event_loss}")
        if not 0 <= self.num_slow_replicas <= self.num_replicas:
            raise ValueError(
                f"num_slow_replicas must be between 0 and num_replicas={self.num_replicas}, "
                f"got {self.num_slow_replicas}"
            )
        if not self.slowness > 0.0:
            raise ValueError(f"slowness must be above 0, got {self.slowness}")

"""What a replica has measured of its own speed, and its load as heartbeats tell it."""

from dataclasses import dataclass, field

from cache.wire.records import ReplicaLoad
from replica.engine.scheduler import Scheduler
from replica.plan import StepPlan

_MIN_PREFILL_TOKENS = 32
"""Steps with fewer prefill tokens say nothing about the prefill rate: overhead dominates them."""
_WEIGHT = 0.1


@dataclass(slots=True)
class MeasuredSpeed:
    """Moving averages over the engine's steps, 0 until something was measured.

    prefill_tokens_per_second: of steps that mainly prefill, decode time of the same step taken off.
    decode_step_seconds: of steps that only decode. load_bytes_per_second: of pages that came into the pool, by the tier
    they came from.
    """

    prefill_tokens_per_second: float = 0.0
    decode_step_seconds: float = 0.0
    load_bytes_per_second: dict[str, float] = field(default_factory=dict)

    def observe_load(self, tier: str, num_bytes: int, seconds: float) -> None:
        if num_bytes and seconds > 0:
            known = self.load_bytes_per_second.get(tier, 0.0)
            self.load_bytes_per_second[tier] = _average(known, num_bytes / seconds)

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self.observe_tokens(plan.num_tokens - plan.num_decodes, plan.num_decodes, seconds)

    def observe_tokens(self, num_prefill: int, num_decodes: int, seconds: float) -> None:
        """A step that prefilled so many tokens beside so many decoding requests."""
        if seconds <= 0:  # nothing took no time: a clock that was set back tells nothing of the replica's speed
            return
        if not num_prefill:
            self.decode_step_seconds = _average(self.decode_step_seconds, seconds)
        elif num_prefill >= _MIN_PREFILL_TOKENS:
            decode_part = min(self.decode_step_seconds, seconds / 2) if num_decodes else 0.0
            rate = num_prefill / max(seconds - decode_part, 1e-9)
            self.prefill_tokens_per_second = _average(self.prefill_tokens_per_second, rate)

    def prefill_seconds(self, num_tokens: int) -> float:
        """Predicted time to prefill so many tokens; 0 while nothing was measured."""
        return num_tokens / self.prefill_tokens_per_second if self.prefill_tokens_per_second else 0.0


def _average(old: float, new: float) -> float:
    return new if not old else old + _WEIGHT * (new - old)


def engine_load(scheduler: Scheduler, speed: MeasuredSpeed) -> ReplicaLoad:
    """May be called from another thread than the engine's: single numbers are then one step apart at most."""
    manager, load_rates = scheduler.manager, speed.load_bytes_per_second
    return ReplicaLoad(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        queued_prefill_tokens=scheduler.num_queued_prefill_tokens,
        num_free_blocks=manager.num_free_blocks,
        num_blocks=manager.num_blocks,
        num_room_blocks=manager.num_room_blocks,
        prefill_tokens_per_second=speed.prefill_tokens_per_second,
        decode_step_seconds=speed.decode_step_seconds,
        pull_bytes_per_second=load_rates.get("peer", 0.0),
        host_bytes_per_second=load_rates.get("host", 0.0),
        disk_bytes_per_second=load_rates.get("disk", 0.0),
    )

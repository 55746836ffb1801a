"""What routers hear of an engine."""

from cache.wire.records import ReplicaLoad
from replica.engine.measured_speed import MeasuredSpeed
from replica.engine.scheduler import Scheduler


def engine_load(scheduler: Scheduler, speed: MeasuredSpeed) -> ReplicaLoad:
    """May be called from another thread than the engine's: single numbers are then one step apart at most."""
    manager = scheduler.manager
    return ReplicaLoad(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        queued_prefill_tokens=scheduler.num_queued_prefill_tokens,
        num_free_blocks=manager.num_free_blocks,
        num_blocks=manager.num_blocks,
        prefill_tokens_per_second=speed.prefill_tokens_per_second,
        decode_step_seconds=speed.decode_step_seconds,
    )

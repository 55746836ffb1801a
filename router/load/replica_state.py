"""One replica as the router knows it."""

from dataclasses import dataclass, field

from cache.wire.records import ReplicaRegistration
from router.load.views import LoadTracker

SETTLE_SECONDS = 0.25
"""So long after caches were emptied other routers' records may still be from before it: two polls and a bit."""
UNSURE_SECONDS = 0.05
"""So exactly it is known when another router sent something: its age goes through Redis and back."""


@dataclass(slots=True)
class ReplicaState:
    """slot: what counts for it in the mirror. registration: None while it is not (or no longer) in Redis.

    foreign: its canary differs from ours: its block keys mean nothing here, so it is never warm.
    failed_until: when what Redis says about it is believed again after a failure seen here.
    emptied_at: when its cache was last empty, or it failed or left: what was sent there before brings nothing (C12).
    """

    slot: int
    registration: ReplicaRegistration | None = None
    foreign: bool = False
    failed_until: float = float("-inf")
    emptied_at: float = float("-inf")
    load: LoadTracker = field(default_factory=LoadTracker)

    @property
    def pages_at(self) -> str:
        """Where it gives its pages away; empty where it does not."""
        return self.registration.pages_at if self.registration is not None else ""

    def lost(self, sent_at: float, now: float) -> bool:
        """Whether what another router sent then was computed, or begun, before the cache was emptied."""
        unsure = UNSURE_SECONDS if now < self.emptied_at + SETTLE_SECONDS else 0.0
        return sent_at <= self.emptied_at + unsure

    def describe(self, num_blocks: int, num_refused: int, now: float) -> dict[str, object]:
        view = self.load.view("", 0, now)
        return {
            "registered": self.registration is not None,
            "incarnation": self.registration.incarnation if self.registration is not None else None,
            "foreign": self.foreign,
            "failed": now < self.failed_until,
            "num_blocks": num_blocks,
            "num_refused_blocks": num_refused,
            "num_running": view.num_running,
            "num_waiting": view.num_waiting,
            "queued_prefill_tokens": view.queued_prefill_tokens,
            "prefill_tokens_per_second": view.prefill_tokens_per_second,
            "decode_step_seconds": view.decode_step_seconds,
        }

"""What an engine tells while it works."""

from collections.abc import Sequence

from cache.events import KVEvent
from replica.messages import FinishReason


class EngineObserver:
    """Called from the engine's thread; must return at once and never raise. This one ignores everything.

    Seconds count from the request's arrival at the ingress, but for the queue, which begins at the engine's door.
    """

    def admitted(self, queue_seconds: float) -> None: ...

    def first_token(self, ttft_seconds: float) -> None: ...

    def next_token(self, gap_seconds: float) -> None: ...

    def finished(self, reason: FinishReason, total_seconds: float) -> None: ...

    def kv_events(self, events: Sequence[KVEvent]) -> None: ...

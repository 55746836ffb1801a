"""What an engine counts, and what it tells as it happens."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cache.events import KVEvent
from replica.messages import FinishReason


@dataclass(slots=True)
class EngineCounters:
    """Every number only grows. Token numbers of a request are counted once, at its first admission.

    num_hit_tokens: of the pool and of colder tiers; num_loaded_tokens: those of the tiers, by tier. load_seconds,
    num_loaded_bytes: what bringing them took, by tier. num_failed_loads: loads that ended before all their pages had
    come, by cause.
    num_imported_pages: of other replicas, taken before anybody asked for them (`loading/page_importer.py`).
    num_computed_positions: positions that went through the model, whatever for. num_leaked_pages: the most pages that
    were ever held while nothing ran; not 0 is a fault of the engine (A19).
    """

    num_steps: int = 0
    num_failed_steps: int = 0
    num_leaked_pages: int = 0
    num_computed_positions: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_hit_tokens: int = 0
    num_loaded_tokens: Counter[str] = field(default_factory=Counter)
    load_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_loaded_bytes: Counter[str] = field(default_factory=Counter)
    num_failed_loads: Counter[str] = field(default_factory=Counter)
    num_imported_pages: int = 0
    prefill_saved_seconds: float = 0.0
    num_finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


class EngineObserver:
    """Called from the engine's thread; must return at once and never raise. This one ignores everything.

    Seconds count from the request's arrival at the ingress, but for the queue, which begins at the engine's door.
    """

    def admitted(self, queue_seconds: float) -> None: ...

    def first_token(self, ttft_seconds: float) -> None: ...

    def next_token(self, gap_seconds: float) -> None: ...

    def finished(self, reason: FinishReason, total_seconds: float) -> None: ...

    def kv_events(self, events: Sequence[KVEvent]) -> None: ...

"""The replica's part of `/metrics`. Names stand here without `warmlane_` and `_total`; what is exported is counted in
the engine (`engine/observer.py`, `engine/scheduler.py`, `cache/`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache.events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from replica.engine.engine import Engine
from replica.engine.observer import EngineObserver
from replica.messages import FinishReason

_LABELS = ("model", "process", "replica")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class EngineMetrics(EngineObserver, Collector):
    """Distributions are noted as they happen; totals and gauges are read from the engine when somebody asks, so that
    they are fresh even when the engine is idle. Before `watch` nothing counts: the engine is warming up."""

    def __init__(self, registry: CollectorRegistry, model: str, process: str, replica: str):
        self._values = (model, process, replica)
        self._engine: Engine | None = None
        self._num_stored = self._num_moved = self._num_removed = self._num_cleared = 0
        self.on_kv_events: Callable[[Sequence[KVEvent]], None] = lambda events: None

        def histogram(name: str, text: str) -> Histogram:
            metric = Histogram(name, text, _LABELS, registry=registry, buckets=_SECONDS)
            return metric.labels(*self._values)

        self._queue = histogram("warmlane_queue_seconds", "Time from the engine's door to admission")
        self._ttft = histogram("warmlane_ttft_seconds", "Time from the ingress to the first token")
        self._gap = histogram("warmlane_inter_token_seconds", "Time between two tokens of a request")
        self._total = histogram("warmlane_request_seconds", "Time from the ingress to the end of a request")
        registry.register(self)

    def watch(self, engine: Engine) -> None:
        """The engine whose totals and gauges are exported from now on."""
        self._engine = engine

    def admitted(self, queue_seconds: float) -> None:
        self._observe(self._queue, queue_seconds)

    def first_token(self, ttft_seconds: float) -> None:
        self._observe(self._ttft, ttft_seconds)

    def next_token(self, gap_seconds: float) -> None:
        self._observe(self._gap, gap_seconds)

    def finished(self, reason: FinishReason, total_seconds: float) -> None:
        self._observe(self._total, total_seconds)

    def _observe(self, histogram: Histogram, seconds: float) -> None:
        if self._engine is not None:
            histogram.observe(max(0.0, seconds))

    def kv_events(self, events: Sequence[KVEvent]) -> None:
        if self._engine is None:
            return
        for event in events:
            match event:
                case BlocksStored(keys, "device"):
                    self._num_stored += len(keys)
                case BlocksStored(keys):
                    self._num_moved += len(keys)
                case BlocksRemoved(keys):
                    self._num_removed += len(keys)
                case CacheCleared():
                    self._num_cleared += 1
                case _:
                    assert_never(event)
        self.on_kv_events(events)

    def collect(self) -> Iterator[Metric]:
        if self._engine is not None:
            yield from self._counters(self._engine)
            yield from self._gauges(self._engine)

    def _counters(self, engine: Engine) -> Iterator[Metric]:
        counters, scheduler = engine.counters, engine.scheduler
        hits, saved = counters.num_hit_tokens, counters.prefill_saved_seconds
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens of admitted requests", counters.num_prompt_tokens),
            ("generated_tokens", "Tokens sampled", counters.num_generated_tokens),
            ("computed_positions", "Positions that went through the model", counters.num_computed_positions),
            ("prefill_saved_tokens", "Prompt tokens that needed no prefill", hits),
            ("prefill_saved_seconds", "Prefill time saved, by this replica's measured rate", saved),
            (
                "inflight_shared_tokens",
                "Hits on what another request was computing",
                scheduler.num_inflight_shared_tokens,
            ),
            ("recomputed_tokens", "Tokens computed again after a preemption", scheduler.num_recomputed_tokens),
            ("preemptions", "Requests thrown out for want of pages", scheduler.num_preemptions),
            ("engine_steps", "Engine steps", counters.num_steps),
            ("engine_failed_steps", "Engine steps that raised", counters.num_failed_steps),
            ("imported_pages", "Pages taken from other replicas ahead of any request", counters.num_imported_pages),
            ("leaked_pages", "Pages held while nothing ran: a fault", counters.num_leaked_pages),
        ):
            yield self._family(CounterMetricFamily, name, text, {(): value})
        by_tier = {("device",): hits - sum(counters.num_loaded_tokens.values())}
        by_tier |= {(tier,): num_tokens for tier, num_tokens in counters.num_loaded_tokens.items()}
        yield self._family(CounterMetricFamily, "hit_tokens", "Prompt tokens served from cached pages", by_tier, "tier")
        failed = {(cause,): count for cause, count in counters.num_failed_loads.items()}
        seconds = {(tier,): value for tier, value in counters.load_seconds.items()}
        yield self._family(CounterMetricFamily, "load_seconds", "Time that bringing pages took", seconds, "tier")
        num_bytes = {(tier,): value for tier, value in counters.num_loaded_bytes.items()}
        yield self._family(CounterMetricFamily, "load_bytes", "Pages brought into the pool", num_bytes, "tier")
        yield self._family(
            CounterMetricFamily, "failed_loads", "Loads that brought less than they were to", failed, "cause"
        )
        finished = {(reason.value,): count for reason, count in counters.num_finished.items()}
        yield self._family(CounterMetricFamily, "requests", "Requests that left the engine", finished, "finish_reason")
        kinds = {
            ("stored",): self._num_stored,
            ("moved",): self._num_moved,
            ("removed",): self._num_removed,
            ("cleared",): self._num_cleared,
        }
        text = "Blocks stored, moved to a colder tier, and removed; caches cleared"
        yield self._family(CounterMetricFamily, "kv_events", text, kinds, "kind")

    def _gauges(self, engine: Engine) -> Iterator[Metric]:
        scheduler, manager = engine.scheduler, engine.manager
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        yield self._family(GaugeMetricFamily, "running_requests", "Requests with pages", {(): running})
        yield self._family(GaugeMetricFamily, "waiting_requests", "Requests in the queue", {(): waiting})
        left = engine.num_pages_out_of_window * manager.blocks_per_page
        yield self._family(
            GaugeMetricFamily, "kv_blocks_out_of_window", "Blocks that every windowed layer has left behind", {(): left}
        )
        states = {
            ("active",): manager.num_blocks - manager.num_free_blocks,
            ("cached",): manager.num_cached_blocks,
            ("free",): manager.num_free_blocks - manager.num_cached_blocks,
        }
        yield self._family(GaugeMetricFamily, "kv_blocks", "Blocks of the pool by state", states, "state")
        tiers = manager.tiers
        if tiers is not None:
            found = (("host", tiers.host), ("disk", tiers.disk))
            sizes = {(name,): tier.num_bytes for name, tier in found if tier is not None}
            yield self._family(GaugeMetricFamily, "kv_tier_bytes", "Pages in colder tiers", sizes, "tier")
        chosen = engine.forward_pass
        if chosen is not None:
            yield self._family(
                GaugeMetricFamily,
                "forward_pass_info",
                "Which forward pass runs, and why not a faster one",
                {(chosen.path, chosen.attention, chosen.device, chosen.reason): 1},
                "path", "attention", "device", "reason",
            )  # fmt: skip

    def _family(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        values: Mapping[Any, float],
        *labels: str,
    ) -> Metric:
        family = kind(f"warmlane_{name}", text, labels=(*_LABELS, *labels))
        for extra, value in values.items():
            family.add_metric((*self._values, *extra), value)
        return family

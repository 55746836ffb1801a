"""The router's metrics, under the names of the design, on the registry of the caller."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from router.decision import Decision

PHASE_BUCKETS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 0.1, 0.5)
_PROCESS = ("model", "process")


class RouterMetrics:
    """One per router. model: served name; process: this ingress's incarnation. Safe from any thread."""

    def __init__(self, registry: CollectorRegistry, model: str, process: str):
        self._labels = {"model": model, "process": process}
        policy = (*_PROCESS, "policy")

        def counter(name: str, text: str, labels: tuple[str, ...] = _PROCESS) -> Counter:
            return Counter(f"warmlane_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"warmlane_{name}", text, _PROCESS, registry=registry)

        self._decisions = counter("route_decisions", "Routing decisions", (*policy, "outcome"))
        self._seconds = Histogram(
            "warmlane_route_seconds",
            "Time to route, by phase",
            (*policy, "phase"),
            buckets=PHASE_BUCKETS,
            registry=registry,
        )
        self._predicted = counter(
            "route_predicted_hit_tokens", "Prompt tokens expected in the chosen replica's cache", policy
        )
        self._reachable = counter("route_reachable_hit_tokens", "Prompt tokens in the cache that holds most", policy)
        self._fallbacks = counter(
            "route_fallbacks", "Requests that went where the policy had not sent them", (*_PROCESS, "reason")
        )
        self._resyncs = counter(
            "index_resyncs", "Times that the mirror was repaired from snapshots", (*_PROCESS, "reason")
        )
        drift = counter("index_drift_blocks", "Blocks in which the mirror was wrong")
        self._drift = drift.labels(**self._labels)  # at zero from the start: rate() does not see a first increase
        self._dropped = counter("index_dropped_records", "Records in Redis that were not used", (*_PROCESS, "reason"))
        self._blocks = gauge("index_blocks", "Block keys in the mirror").labels(**self._labels)
        self._refused = gauge("index_refused_blocks", "Block keys of replicas that the mirror has no room for").labels(
            **self._labels
        )
        self._staleness = gauge("index_staleness_seconds", "Time since the mirror was up to date").labels(
            **self._labels
        )
        self._rung = gauge("router_rung", "0 fresh, 1 stale, 2 rendezvous, 3 power of two").labels(**self._labels)
        self.num_dropped = 0
        """Records in Redis that were not used, whatever the reason."""

    def observe_decision(self, decision: Decision) -> None:
        labels = {**self._labels, "policy": decision.policy}
        self._decisions.labels(**labels, outcome=decision.outcome.value).inc()
        self._predicted.labels(**labels).inc(decision.predicted_hit_tokens)
        self._reachable.labels(**labels).inc(decision.reachable_hit_tokens)
        self.observe_phases(decision.policy, decision.phase_seconds)

    def observe_phases(self, policy: str, phase_seconds: Mapping[str, float]) -> None:
        for phase, seconds in phase_seconds.items():
            self._seconds.labels(**self._labels, policy=policy, phase=phase).observe(seconds)

    def count_fallback(self, reason: str) -> None:
        self._fallbacks.labels(**self._labels, reason=reason).inc()

    def count_resync(self, reason: str) -> None:
        self._resyncs.labels(**self._labels, reason=reason).inc()

    def count_drift(self, num_blocks: int) -> None:
        self._drift.inc(num_blocks)

    def count_dropped(self, reason: str) -> None:
        """reason: malformed, foreign (another canary)."""
        self.num_dropped += 1
        self._dropped.labels(**self._labels, reason=reason).inc()

    def watch_index(
        self,
        num_blocks: Callable[[], float],
        num_refused: Callable[[], float],
        staleness_seconds: Callable[[], float],
        rung: Callable[[], float],
    ) -> None:
        """The gauges are read when they are scraped, so they are fresh without traffic too."""
        self._blocks.set_function(num_blocks)
        self._refused.set_function(num_refused)
        self._staleness.set_function(staleness_seconds)
        self._rung.set_function(rung)

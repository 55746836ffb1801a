"""The ingress's own part of `/metrics`; the router and the replicas count theirs."""

from prometheus_client import CollectorRegistry, Counter

from cluster.api.engine_call import NoReplicaAvailable, ReplicaLost
from cluster.api.errors import ApiError
from cluster.api.failures import EngineFailure
from replica.messages import FinishReason


class IngressMetrics:
    """Requests that no engine has counted, so that every request is counted once (41).

    What an engine refused, aborted or failed stands in that replica's counters. `replica` is empty here.
    """

    def __init__(self, registry: CollectorRegistry, model: str, process: str):
        self._labels = {"model": model, "process": process, "replica": ""}
        self._requests = Counter(
            "warmlane_requests",
            "Requests that left the engine",
            (*self._labels, "finish_reason"),
            registry=registry,
        )
        for reason in (FinishReason.REJECTED, FinishReason.ERROR):
            self._requests.labels(**self._labels, finish_reason=reason.value)

        self._transports = Counter(
            "warmlane_transport_requests",
            "Requests sent to replicas, by how their answers come back",
            (*self._labels, "transport"),
            registry=registry,
        )
        self._channel_failures = Counter(
            "warmlane_side_channel_failures",
            "Side channels that could not be opened or were lost",
            (*self._labels, "reason"),
            registry=registry,
        )

    def count_transport(self, transport: str) -> None:
        self._transports.labels(**self._labels, transport=transport).inc()

    def count_channel_failure(self, reason: str) -> None:
        self._channel_failures.labels(**self._labels, reason=reason).inc()

    def count_failure(self, error: BaseException) -> None:
        """error: what ended a request with an HTTP error or an error event."""
        if isinstance(error, EngineFailure):
            return
        if isinstance(error, ApiError | NoReplicaAvailable):
            self._count(FinishReason.REJECTED)
        elif isinstance(error, ReplicaLost):  # the counters of the replica died with it
            self._count(FinishReason.ERROR)

    def _count(self, reason: FinishReason) -> None:
        self._requests.labels(**self._labels, finish_reason=reason.value).inc()

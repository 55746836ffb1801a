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

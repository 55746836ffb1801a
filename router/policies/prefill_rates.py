"""How fast each replica prefills, as far as a router can know."""

from collections.abc import Sequence
from statistics import median

from router.load.views import ReplicaView

LEAST_PREFILL_RATE = 1e-6
"""Tokens per second; below that nothing sensible was measured."""


def prefill_rates(replicas: Sequence[ReplicaView], default: float) -> dict[str, float]:
    """Tokens per second by replica id: its own measurement, else the median of the others', else `default`."""
    measured = [r.prefill_tokens_per_second for r in replicas if r.prefill_tokens_per_second > LEAST_PREFILL_RATE]
    middle = median(measured) if measured else default
    return {
        r.replica_id: r.prefill_tokens_per_second if r.prefill_tokens_per_second > LEAST_PREFILL_RATE else middle
        for r in replicas
    }

"""Baseline: each replica in turn."""

from collections.abc import Sequence
from random import Random

from router.policies.base import Policy, PolicyChoice, RequestShape
from router.replica_view import ReplicaView


class RoundRobinPolicy(Policy):
    """In the order of ids; remembers the last one by name, so that replicas may come and go."""

    name = "round_robin"

    def __init__(self, weights: dict[str, float] | None = None):
        super().__init__(weights)
        self._last = ""

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        ids = [replica.replica_id for replica in replicas]
        self._last = next((replica_id for replica_id in ids if replica_id > self._last), ids[0])
        return PolicyChoice(self._last, "next in turn")

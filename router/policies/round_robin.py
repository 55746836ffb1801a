"""Baseline: each replica in turn."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape


class RoundRobinPolicy(Policy):
    """In the order of ids; remembers the last one by name, so that replicas may come and go."""

    name = "round_robin"

    def __init__(self, weights: dict[str, float] | None = None):
        super().__init__(weights)
        self._last = ""

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        ids = [replica.replica_id for replica in replicas]
        return PolicyChoice(next((replica_id for replica_id in ids if replica_id > self._last), ids[0]), "next in turn")

    def on_sent(self, request: RequestShape, replica_id: str, replicas: Sequence[ReplicaView], now: float) -> None:
        self._last = replica_id

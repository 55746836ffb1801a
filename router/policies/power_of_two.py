"""Baseline: of two at random the less loaded one (Mitzenmacher, 1996)."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape


class PowerOfTwoPolicy(Policy):
    name = "power_of_two"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        pair = rng.sample(replicas, min(2, len(replicas)))
        scores = {replica.replica_id: float(replica.num_in_flight) for replica in pair}
        chosen = min(pair, key=lambda replica: replica.num_in_flight)
        return PolicyChoice(chosen.replica_id, f"{chosen.num_in_flight} in flight, the fewer of two at random", scores)

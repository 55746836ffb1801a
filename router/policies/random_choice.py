"""Baseline: any replica."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape


class RandomPolicy(Policy):
    name = "random"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        return PolicyChoice(rng.choice(replicas).replica_id, f"one of {len(replicas)} at random")

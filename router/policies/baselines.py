"""Baselines: policies so simple that every other one must beat them."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest
from router.policies.hash_ring import ring_of


class RandomPolicy(Policy):
    """Any replica."""

    name = "random"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        return PolicyChoice(rng.choice(replicas).replica_id, f"one of {len(replicas)} at random")


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


class PowerOfTwoPolicy(Policy):
    """Of two at random the less loaded one (Mitzenmacher, 1996)."""

    name = "power_of_two"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        pair = rng.sample(replicas, min(2, len(replicas)))
        scores = {replica.replica_id: float(replica.num_in_flight) for replica in pair}
        chosen = min(pair, key=lambda replica: replica.num_in_flight)
        return PolicyChoice(chosen.replica_id, f"{chosen.num_in_flight} in flight, the fewer of two at random", scores)


class LeastTokensPolicy(Policy):
    """Fewest prompt tokens queued; among equals the fewest in flight, then at random."""

    name = "least_tokens"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        scores = {replica.replica_id: float(replica.queued_prefill_tokens) for replica in replicas}
        chosen = lowest(scores, replicas, 0.0, rng)
        return PolicyChoice(chosen.replica_id, f"{chosen.queued_prefill_tokens} prompt tokens queued", scores)


class LongestPrefixPolicy(Policy):
    """The longest cached prefix, whatever it costs. Piles a shared prompt up on one replica (23)."""

    name = "longest_prefix"
    uses_index = True

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        scores = {replica.replica_id: -float(replica.hit_tokens) for replica in replicas}
        chosen = lowest(scores, replicas, 0.0, rng)
        return PolicyChoice(chosen.replica_id, f"{chosen.hit_tokens} of {request.num_tokens} tokens cached", scores)


class SessionHashPolicy(Policy):
    """The consistent hash of the session's name, as sticky sessions of load balancers do. Blind to load and prefixes.

    A request without a session goes where the fewest are in flight: there is nothing to stick to.
    """

    name = "session_hash"

    def choose(self, request: RequestShape, replicas: Sequence[ReplicaView], now: float, rng: Random) -> PolicyChoice:
        if request.session_id:
            ring = ring_of(tuple(replica.replica_id for replica in replicas))
            return PolicyChoice(next(ring.walk(request.session_id.encode())), "hash of the session")
        scores = {replica.replica_id: float(replica.num_in_flight) for replica in replicas}
        return PolicyChoice(lowest(scores, replicas, 0.0, rng).replica_id, "no session: fewest in flight", scores)

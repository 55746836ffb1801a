"""Baseline: a session stays where it began, whatever that replica has to do."""

from collections.abc import Sequence
from random import Random

from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape, lowest
from router.policies.hash_ring import ring_of


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

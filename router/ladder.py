"""How well the router knows the replicas, and what it does where it knows little."""

from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

from router.load.views import ReplicaView

STALE_AFTER_SECONDS = 1.5
"""Several polls of Redis without an answer: the mirror is stale."""
STALE_BOUND_SECONDS = 60.0
"""A mirror without news for so long says nothing any more."""
BOUNDED_LOAD_FACTOR = 1.25
"""Above this many times the mean of requests in flight rendezvous hashing passes a replica over,"""
BOUNDED_LOAD_FLOOR = 4
"""but never below this many requests."""
RENDEZVOUS_BLOCKS = 8
"""So many blocks are hashed: more than what all chats of a template share, fewer than most system prompts have."""


class Rung(IntEnum):
    """FRESH: the mirror is up to date. STALE: Redis is away, the mirror is used up to a bound.

    RENDEZVOUS: no mirror; what this router sent of late, else the rendezvous hash of the prefix, on which several
    routers agree without a word. POWER_OF_TWO: nothing to hash, or the policy failed: two at random, the less loaded.
    """

    FRESH = 0
    STALE = 1
    RENDEZVOUS = 2
    POWER_OF_TWO = 3


def rung_of(last_synced: float | None, now: float) -> Rung:
    """last_synced: when all that Redis holds was last known here; None for never."""
    if last_synced is None or now - last_synced > STALE_BOUND_SECONDS:
        return Rung.RENDEZVOUS
    return Rung.STALE if now - last_synced > STALE_AFTER_SECONDS else Rung.FRESH


def rendezvous_choice(affinity: bytes, replicas: Sequence[ReplicaView]) -> ReplicaView:
    """The replica with the highest hash of (affinity, replica) that is not above the bound of load.

    Highest random weight hashing (Thaler and Ravishankar, 1996) with bounded loads (Mirrokni et al., 2016): a replica
    that goes away moves only its own prompts, and a hot prefix spills over in a fixed order.
    """
    mean = (sum(replica.num_in_flight for replica in replicas) + 1) / len(replicas)
    bound = max(BOUNDED_LOAD_FLOOR, BOUNDED_LOAD_FACTOR * mean)
    allowed = [replica for replica in replicas if replica.num_in_flight < bound]
    return max(allowed, key=lambda replica: blake2b(replica.replica_id.encode(), key=affinity[:64]).digest())

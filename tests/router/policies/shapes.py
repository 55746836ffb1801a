"""Prompts and replicas as policies see them."""

import random
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from router.load.views import ReplicaView
from router.policies.base import Policy, RequestShape

BLOCK = 16
IDS = ("a", "b", "c", "d")


def keys(*parts: tuple[str, int]) -> list[bytes]:
    """Chained block keys of named parts with their lengths in blocks; equal heads give equal keys."""
    chain, found = b"", []
    for name, num_blocks in parts:
        for number in range(num_blocks):
            chain = blake2b(f"{name} {number}".encode(), key=chain, digest_size=16).digest()
            found.append(chain)
    return found


def prompt(*parts: tuple[str, int], tail: int = 0, session: str | None = None, new_tokens: int = 32) -> RequestShape:
    """tail: tokens behind the last full block."""
    found = keys(*parts)
    return RequestShape(len(found) * BLOCK + tail, new_tokens, found, BLOCK, session)


def idle(*ids: str) -> list[ReplicaView]:
    return [ReplicaView(replica_id) for replica_id in ids or IDS]


def with_load(loads: dict[str, int]) -> list[ReplicaView]:
    """So many running requests each."""
    return [ReplicaView(replica_id, num_running=load) for replica_id, load in loads.items()]


def with_hits(replicas: Sequence[ReplicaView], **hits: int) -> list[ReplicaView]:
    return [r._replace(hit_tokens=hits.get(r.replica_id, r.hit_tokens)) for r in replicas]


def choose(
    policy: Policy, request: RequestShape, replicas: Sequence[ReplicaView], now: float = 0.0, seed: int = 1
) -> str:
    return policy.choose(request, replicas, now, random.Random(seed)).replica_id


def send(
    policy: Policy,
    request: RequestShape,
    replicas: Sequence[ReplicaView],
    to: str | None = None,
    now: float = 0.0,
    rng: random.Random | None = None,
) -> str:
    """Chooses (or takes `to`) and tells the policy."""
    replica_id = to or policy.choose(request, replicas, now, rng or random.Random(1)).replica_id
    policy.on_sent(request, replica_id, replicas, now)
    return replica_id


def shares(policy: Policy, request: RequestShape, replicas: Sequence[ReplicaView], times: int = 400) -> Counter[str]:
    """How often each replica is chosen for one and the same request, with nothing remembered in between."""
    rng = random.Random(1)
    return Counter(policy.choose(request, replicas, 0.0, rng).replica_id for _ in range(times))

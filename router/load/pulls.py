"""What each candidate could take from another replica instead of computing it."""

from collections.abc import Mapping, Sequence

from router.load.views import ReplicaView

LEAST_TOKENS = 64
"""Fewer are computed in the time that a transfer takes to begin."""
BEGIN_SECONDS = 0.01
"""Until the first page comes: the ask, a step's edge at both ends of the load."""
UNMEASURED_BYTES_PER_SECOND = 1e9
"""Below what memory shared between two processes gives, above most networks."""


def with_pulls(
    views: Sequence[ReplicaView], held_tokens: Mapping[str, int], givers: Mapping[str, int], block_size: int
) -> list[ReplicaView]:
    """held_tokens: leading prompt tokens whose pages are there by now, what is only expected left out. givers: replicas
    that give their pages away, each with a view, and the bytes of a block.

    The one that holds most is asked, of equals the one that has least to do.
    """
    by_id = {view.replica_id: view for view in views}
    holders = [replica_id for replica_id in givers if held_tokens.get(replica_id, 0) >= LEAST_TOKENS]
    if not holders:
        return list(views)
    best = max(holders, key=lambda name: (held_tokens[name], -by_id[name].num_in_flight, name))
    return [_with_pull(view, best, held_tokens[best], givers, block_size) for view in views]


def _with_pull(
    view: ReplicaView, giver: str, held_tokens: int, givers: Mapping[str, int], block_size: int
) -> ReplicaView:
    num_tokens = held_tokens - view.hit_tokens
    if view.replica_id == giver or view.replica_id not in givers or num_tokens < LEAST_TOKENS:
        return view
    rate = view.pull_bytes_per_second or UNMEASURED_BYTES_PER_SECOND
    seconds = BEGIN_SECONDS + num_tokens / block_size * givers[giver] / rate
    return view._replace(pull_from=giver, pull_tokens=num_tokens, pull_seconds=seconds)

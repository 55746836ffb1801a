"""What bringing pages into a replica's pool would cost: from its own colder tiers, and from another replica."""

from collections.abc import Mapping, Sequence
from math import inf

from cache.events import Tier
from router.load.views import ReplicaView

LEAST_TOKENS = 64
"""Fewer are computed in the time that a transfer takes to begin."""
BEGIN_SECONDS = 0.01
"""Until the first page comes: the ask, a step's edge at both ends of the load."""
UNMEASURED_BYTES_PER_SECOND = 1e9
"""Of a pull: below what memory shared between two processes gives, above most networks."""
UNMEASURED_HOST_BYTES_PER_SECOND = 2e9
UNMEASURED_DISK_BYTES_PER_SECOND = 5e8


def with_restoring(view: ReplicaView, blocks: Mapping[Tier, int], block_size: int, block_bytes: int) -> ReplicaView:
    """blocks: of the view's hit, those that lie in colder tiers."""
    host, disk = blocks.get("host", 0), blocks.get("disk", 0)
    seconds = BEGIN_SECONDS
    seconds += host * block_bytes / (view.host_bytes_per_second or UNMEASURED_HOST_BYTES_PER_SECOND)
    seconds += disk * block_bytes / (view.disk_bytes_per_second or UNMEASURED_DISK_BYTES_PER_SECOND)
    return view._replace(host_tokens=host * block_size, disk_tokens=disk * block_size, restore_seconds=seconds)


def with_pulls(
    views: Sequence[ReplicaView], held_tokens: Mapping[str, int], givers: Mapping[str, int], block_size: int
) -> list[ReplicaView]:
    """held_tokens: leading prompt tokens whose pages are there by now, what is only expected left out. givers: replicas
    that give their pages away, each with a view, and the bytes of a block.

    The one that holds most is asked, of equals the one that gives soonest and then the one that has least to do.
    """
    by_id = {view.replica_id: view for view in views}
    holders = [replica_id for replica_id in givers if held_tokens.get(replica_id, 0) >= LEAST_TOKENS]
    if not holders:
        return list(views)
    best = max(
        holders,
        key=lambda name: (
            held_tokens[name],
            -by_id[name].num_pulls,
            -by_id[name].restore_seconds,
            -by_id[name].num_in_flight,
            name,
        ),
    )
    return [_with_pull(view, by_id[best], held_tokens[best], givers, block_size) for view in views]


def _with_pull(
    view: ReplicaView, giver: ReplicaView, held_tokens: int, givers: Mapping[str, int], block_size: int
) -> ReplicaView:
    """Who takes pages from one giver at the same time shares what it can give."""
    num_tokens = held_tokens - view.hit_tokens
    if view.replica_id == giver.replica_id or view.replica_id not in givers or num_tokens < LEAST_TOKENS:
        return view
    rate = view.pull_bytes_per_second or UNMEASURED_BYTES_PER_SECOND
    seconds = num_tokens / block_size * givers[giver.replica_id] / rate * (1 + giver.num_pulls)
    seconds += BEGIN_SECONDS + giver.restore_seconds
    return view._replace(
        pull_from=giver.replica_id,
        pull_tokens=num_tokens,
        pull_seconds=seconds,
        pull_lasts=_lasts(giver, block_size),
        pull_evicts=_evicts(view, num_tokens, block_size),
    )


def _lasts(giver: ReplicaView, block_size: int) -> float:
    """What was used last is evicted last."""
    room = (giver.num_blocks + giver.num_room_blocks) * block_size
    return room / giver.prefill_tokens_per_second if room and giver.prefill_tokens_per_second else inf


def _evicts(view: ReplicaView, num_tokens: int, block_size: int) -> float:
    """Behind what is queued there, which takes its room first."""
    left = view.num_room_blocks * block_size - view.queued_prefill_tokens
    return min(1.0, max(0.0, 1.0 - left / num_tokens))

"""What bringing pages into a replica's pool would cost: from its own colder tiers, and from another replica."""

from collections.abc import Mapping, Sequence
from math import inf

from cache.events import Tier
from router.load.views import ReplicaView

BEGIN_SECONDS = 0.01
"""Until the first page comes: the ask, a step's edge at both ends of the load."""
UNMEASURED_BYTES_PER_SECOND = 1e9
"""Of a pull: below what memory shared between two processes gives, above most networks."""
UNMEASURED_HOST_BYTES_PER_SECOND = 2e9
UNMEASURED_DISK_BYTES_PER_SECOND = 5e8
FIRST_OF_PULL = ReplicaView._fields.index("pull_from")
"""The fields from here on are what a pull is."""


def with_restoring(view: ReplicaView, blocks: Mapping[Tier, int], block_size: int, block_bytes: int) -> ReplicaView:
    """blocks: of the view's hit, those that lie in colder tiers."""
    host, disk = blocks.get("host", 0), blocks.get("disk", 0)
    seconds = BEGIN_SECONDS
    seconds += host * block_bytes / (view.host_bytes_per_second or UNMEASURED_HOST_BYTES_PER_SECOND)
    seconds += disk * block_bytes / (view.disk_bytes_per_second or UNMEASURED_DISK_BYTES_PER_SECOND)
    return view._replace(host_tokens=host * block_size, disk_tokens=disk * block_size, restore_seconds=seconds)


def with_pulls(views: Sequence[ReplicaView], block_bytes: Mapping[str, int], block_size: int) -> list[ReplicaView]:
    """The one that holds most is asked, of equals the one that gives soonest and then the one that has least to do.

    block_bytes: of one block, by those that give their pages away and take them from others.
    """
    best = max(views, key=_first_asked)
    if not best.given_tokens:
        return list(views)
    lasts = _lasts(best, block_size)
    bytes_of_token = (1 + best.num_pulls) / block_size * block_bytes[best.replica_id]
    found = []
    for view in views:
        num_tokens = best.given_tokens - view.hit_tokens
        if num_tokens > 0 and view.replica_id in block_bytes and view is not best:
            # Who takes pages from one giver at the same time shares what it can give.
            seconds = num_tokens * bytes_of_token / (view.pull_bytes_per_second or UNMEASURED_BYTES_PER_SECOND)
            seconds += BEGIN_SECONDS + best.restore_seconds
            evicts = _evicts(view, num_tokens, block_size)
            # As `_replace` with all that a pull is, at a fifth of its price.
            pull = (best.replica_id, num_tokens, seconds, lasts, evicts)
            found.append(ReplicaView._make((*view[:FIRST_OF_PULL], *pull)))
        else:
            found.append(view)
    return found


def _first_asked(view: ReplicaView) -> tuple[int, int, float, int, str]:
    return view.given_tokens, -view.num_pulls, -view.restore_seconds, -view.num_in_flight, view.replica_id


def _lasts(giver: ReplicaView, block_size: int) -> float:
    """What was used last is evicted last."""
    room = (giver.num_blocks + giver.num_room_blocks) * block_size
    return room / giver.prefill_tokens_per_second if room and giver.prefill_tokens_per_second else inf


def _evicts(view: ReplicaView, num_tokens: int, block_size: int) -> float:
    """Behind what is queued there, which takes its room first."""
    left = view.num_room_blocks * block_size - view.queued_prefill_tokens
    return min(1.0, max(0.0, 1.0 - left / num_tokens))

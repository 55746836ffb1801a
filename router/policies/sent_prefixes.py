"""What a router sent where: the approximate prefix tree of policies that read no index, and what they share."""

from collections.abc import Mapping, Sequence
from itertools import islice

from cache.block_hasher import BlockKey
from router.load.views import ReplicaView
from router.policies.base import Policy, RequestShape

FORGET_SECONDS = 60.0
"""Longer than a replica is passed over for one request or after one failure."""
MAX_BLOCKS = 500_000
"""Over all replicas. Some 75 MB at most (C22)."""


class LastSeen:
    """When each replica was last a candidate. One that is not for long is gone for good: Ray gives each a new id."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._look_at = float("-inf")

    def update(self, replicas: Sequence[ReplicaView], now: float) -> list[str]:
        """The replicas that have just been found gone."""
        self._seen.update((replica.replica_id, now) for replica in replicas)
        if now < self._look_at:
            return []
        self._look_at = now + FORGET_SECONDS / 10
        gone = [replica_id for replica_id, seen in self._seen.items() if now - seen > FORGET_SECONDS]
        for replica_id in gone:
            del self._seen[replica_id]
        return gone


class SentPrefixes:
    """Per replica the blocks of the prompts sent there, least recently sent first.

    A block key stands for its whole prefix, so a flat set of keys is the tree: one key is one node of `block_size`
    tokens. The deepest block of a prompt is always older than the blocks before it, and the oldest go first; so what
    is left of a prompt is its head, and a match can be found by halving.

    Bounded over all replicas together; who sent most loses first.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS):
        """Raises ValueError for a bound below 1."""
        if max_blocks < 1:
            raise ValueError(f"max_blocks must be at least 1, got {max_blocks}")
        self._max_blocks = max_blocks
        self._held: dict[str, dict[BlockKey, float]] = {}  # key -> when it was last sent
        self._num_blocks = 0

    def __len__(self) -> int:
        """Blocks of all replicas."""
        return self._num_blocks

    def num_blocks(self, replica_id: str) -> int:
        return len(self._held.get(replica_id, ()))

    def depth(self, replica_id: str, keys: Sequence[BlockKey]) -> int:
        """Leading blocks of the prompt that were sent there."""
        held = self._held.get(replica_id)
        if not held:
            return 0
        low, high = 0, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in held:
                low = middle
            else:
                high = middle - 1
        return low

    def insert(self, replica_id: str, keys: Sequence[BlockKey], now: float) -> None:
        held = self._held.setdefault(replica_id, {})
        before = len(held)
        for key in reversed(keys):
            held.pop(key, None)
            held[key] = now
        self._num_blocks += len(held) - before
        if self._num_blocks > self._max_blocks:
            self._evict(self._num_blocks - self._max_blocks + self._max_blocks // 50)  # in batches: deleting the first
            # entries of a dict one by one walks over those already deleted

    def num_live_victims(self, replica_id: str, num_blocks: int, since: float) -> int:
        """Of the `num_blocks` that would be evicted next, how many were sent since then."""
        oldest = islice(self._held.get(replica_id, {}).values(), max(0, num_blocks))
        return sum(sent_at >= since for sent_at in oldest)

    def trim(self, replica_id: str, num_blocks: int) -> None:
        """Drops the oldest blocks of a replica that cannot hold more than so many."""
        held = self._held.get(replica_id, {})
        if len(held) > num_blocks:
            self._drop(held, len(held) - num_blocks + num_blocks // 50)

    def forget(self, replica_id: str) -> None:
        self._num_blocks -= len(self._held.pop(replica_id, ()))

    def _evict(self, surplus: int) -> None:
        while surplus > 0:
            largest = max(self._held.values(), key=len)
            surplus -= self._drop(largest, surplus)

    def _drop(self, held: dict[BlockKey, float], count: int) -> int:
        oldest = list(islice(held, count))
        for key in oldest:
            del held[key]
        self._num_blocks -= len(oldest)
        return len(oldest)


class SentPrefixPolicy(Policy):
    """Every prompt is put into the tree under the replica it is sent to; who is gone is taken out (C18, C22)."""

    def __init__(self, weights: Mapping[str, float] | None = None):
        super().__init__(weights)
        self.sent = SentPrefixes()
        self._seen = LastSeen()

    def on_sent(self, request: RequestShape, replica_id: str, replicas: Sequence[ReplicaView], now: float) -> None:
        for gone in self._seen.update(replicas, now):
            self.sent.forget(gone)
        self.sent.insert(replica_id, request.block_keys, now)

    def forget(self, replica_id: str) -> None:
        self.sent.forget(replica_id)

    def sent_tokens(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> dict[str, int]:
        """Leading tokens of the prompt that were sent to each replica before."""
        size, keys = request.block_size, request.block_keys
        return {replica.replica_id: self.sent.depth(replica.replica_id, keys) * size for replica in replicas}

    def tree_tokens(self, request: RequestShape, replicas: Sequence[ReplicaView]) -> dict[str, int]:
        """Size of each replica's part of the tree."""
        size = request.block_size
        return {replica.replica_id: self.sent.num_blocks(replica.replica_id) * size for replica in replicas}

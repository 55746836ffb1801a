"""What the policies share that keep their own approximate tree of what they sent."""

from collections.abc import Mapping, Sequence

from router.load.views import ReplicaView
from router.policies.base import Policy, RequestShape
from router.policies.last_seen import LastSeen
from router.policies.sent_prefixes import SentPrefixes


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

"""Everything a router knows about replicas, behind one lock."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from cache.block_hasher import BlockKey
from cache.wire.records import ReplicaLoad, Reservation
from router.followed_replicas import KEYS_PER_HOLD, FollowedReplicas
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.load.pulls import with_pulls, with_restoring
from router.load.replica_state import ReplicaState
from router.load.reservations import (
    KEYS_SHARED_SECONDS,
    TRANSIT_SECONDS,
    ReservationLedger,
    SentElsewhere,
    shared_reservations,
)
from router.load.views import LoadChange, ReplicaView

PRUNE_SECONDS = 1.0
SWEEPS_PER_POLL = 64
RENEW_SECONDS = 3.0
"""Less than half of what a prediction lives."""
MAX_RENEWED = 1000
"""Requests that wait for their first token, the newest first."""


class RouterState(FollowedReplicas):
    """The mirror, the replicas and the reservations.

    Two threads use it: the ingress's event loop (`views`, `reserve`, …) and the follower (`load_slot`, `apply`, …),
    which alone writes what replicas published.
    Each public method takes the lock itself and holds it shortly, so routing waits for well below a millisecond; there
    is no queue that somebody must drain, and a router without traffic stays as fresh as any other.
    """

    def __init__(self, mirror: IndexMirror, lease_seconds: float = 900.0):
        super().__init__(mirror)
        self._ledger = ReservationLedger(self._on_change, lease_seconds)
        self._running: frozenset[str] = frozenset()
        self._prune_at = self._renew_at = 0.0
        self.last_synced: float | None = None
        """When the follower last had all that Redis holds; None before the first time."""

    # What the follower calls.

    def on_heartbeat(self, replica_id: str, load: ReplicaLoad, measured_at: float) -> None:
        with self._lock:
            self._get(replica_id).load.on_heartbeat(load, measured_at)

    def set_others(self, reservations: Iterable[SentElsewhere], now: float) -> None:
        """What all other routers sent of late. Their blocks are expected like our own, or siblings of a cold prompt
        that come by different routers would be computed once for each (C9, C25)."""
        reservations = list(reservations)
        for sent in reservations:
            for start in range(0, len(sent.keys), KEYS_PER_HOLD):
                with self._lock:
                    replica = self._replicas.get(sent.replica_id)
                    if replica is not None and now >= replica.failed_until and not replica.lost(sent.sent_at, now):
                        self._mirror.predict(replica.slot, sent.keys[start : start + KEYS_PER_HOLD], now)
        with self._lock:
            sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
            for sent in reservations:
                replica = self._replicas.get(sent.replica_id)
                if replica is not None and sent.sent_at + TRANSIT_SECONDS > replica.load.measured_at:
                    sums[sent.replica_id][0] += 1
                    sums[sent.replica_id][1] += sent.prefill_tokens
            for replica_id, replica in self._replicas.items():
                num_waiting, prefill_tokens = sums.get(replica_id, (0, 0))
                replica.load.set_others(num_waiting, prefill_tokens)

    def sent_lately(
        self, now: float, seconds: float, limit: int, keys_seconds: float = KEYS_SHARED_SECONDS
    ) -> tuple[Reservation, ...]:
        """What the other routers are told: the newest first, at most `limit`."""
        with self._lock:
            entries = self._ledger.sent_since(now - seconds, limit)
            for entry in entries:
                replica = self._replicas.get(entry.replica_id)
                if replica is not None and entry.sent_at <= replica.emptied_at:
                    entry.keys = ()  # they will not be there: nobody may expect them after a reset or a death
            return shared_reservations(entries, now, keys_seconds)

    def sweep(self) -> None:
        """More of what `tend` does a little of: a large replica that died is out of the mirror within seconds."""
        for _ in range(SWEEPS_PER_POLL):
            with self._lock:
                if not self._mirror.sweep():
                    return

    # What the ingress's thread calls.

    def views(
        self, replica_ids: Iterable[str], keys: Sequence[BlockKey], block_size: int, now: float, rung: Rung
    ) -> list[ReplicaView]:
        """One view per replica, sorted by id. keys: blocks of the prompt that an engine could take from its cache.

        On the rung FRESH a replica that is not registered is never warm; below it Redis cannot tell, and what this
        router sent counts. Below STALE nothing that was published counts.
        """
        with self._lock:
            replicas = {replica_id: self._get(replica_id) for replica_id in sorted(replica_ids)}
            there: dict[int, int] = {}
            if rung <= Rung.STALE and any(replica.pages_at for replica in replicas.values()):
                depths, there = self._mirror.longest_prefixes(keys, now)
            else:
                depths = self._mirror.longest_prefix(keys, now, published=rung <= Rung.STALE)
            colder = self._mirror.colder_blocks(keys, depths)
            views: list[ReplicaView] = []
            block_bytes: dict[str, int] = {}  # of those that give their pages away
            for replica_id, replica in replicas.items():
                slot, registration = replica.slot, replica.registration
                warm = not replica.foreign and (registration is not None or rung > Rung.FRESH)
                hit_tokens = depths.get(slot, 0) * block_size if warm else 0
                given_tokens = num_pulls = 0
                if warm and registration is not None and replica.pages_at:
                    block_bytes[replica_id] = registration.block_bytes
                    given_tokens = there.get(slot, 0) * block_size
                    num_pulls = self._ledger.num_pulls(replica_id)
                view = replica.load.view(replica_id, hit_tokens, now, given_tokens, num_pulls)
                if hit_tokens and slot in colder and registration is not None:
                    view = with_restoring(view, colder[slot], block_size, registration.block_bytes)
                views.append(view)
        return with_pulls(views, block_bytes, block_size) if len(block_bytes) > 1 and there else views

    def pages_at(self, replica_id: str) -> str:
        """Where it gives its pages away; empty where it does not."""
        with self._lock:
            replica = self._replicas.get(replica_id)
            return replica.pages_at if replica is not None else ""

    def reserve(
        self,
        request_id: str,
        replica_id: str,
        prefill_tokens: int,
        keys: Sequence[BlockKey],
        now: float,
        pull_tokens: int = 0,
        pull_from: str = "",
    ) -> None:
        """Counts the request on the replica and expects its blocks there; moves it from where it was before.

        pull_tokens: that it takes from `pull_from`, another replica. They are no queue, but what was brought there of
        late, or the replica that computed them would look worn out and the other one get everything that follows.
        """
        with self._lock:
            before = self._ledger.reserve(request_id, replica_id, prefill_tokens, now, pull_from)
            if before is not None and not before.first_token and before.replica_id in self._replicas:
                self._replicas[before.replica_id].load.add_recent(-before.brought_tokens, now)
            replica = self._get(replica_id)
            replica.load.add_recent(prefill_tokens + pull_tokens, now)
            unknown = self._mirror.predict(replica.slot, keys, now)
            entry = self._ledger.get(request_id)
            if entry is not None:
                entry.keys, entry.brought_tokens = tuple(unknown), prefill_tokens + pull_tokens

    def first_token(self, request_id: str, now: float) -> None:
        with self._lock:
            self._ledger.first_token(request_id, now)

    def end(self, request_id: str, now: float) -> None:
        with self._lock:
            entry = self._ledger.end(request_id, now)
            if entry is not None and entry.first_token:
                self._get(entry.replica_id).load.add_answer(now - entry.first_token_at)

    def usable(self, replica_ids: frozenset[str], now: float) -> frozenset[str]:
        """Without those that failed a moment ago, unless that leaves nothing."""
        with self._lock:
            failed = {r for r in replica_ids if (k := self._replicas.get(r)) is not None and now < k.failed_until}
        return replica_ids - failed or replica_ids

    def tend(self, running: frozenset[str], now: float) -> None:
        """Small upkeep at each decision and poll: leases that ended, slots to sweep, replicas that are gone, and blocks
        that are expected for longer than a prediction lives."""
        if now >= self._renew_at:
            self._renew_at = now + RENEW_SECONDS
            self._renew_predictions(now)
        with self._lock:
            self._ledger.end_expired(now)
            self._mirror.sweep()
            if running == self._running and now < self._prune_at:
                return
            self._running, self._prune_at = running, now + PRUNE_SECONDS
            for replica_id in [r for r, replica in self._replicas.items() if self._is_over(r, replica, now)]:
                self._mirror.drop(self._replicas.pop(replica_id).slot)

    def _renew_predictions(self, now: float) -> None:
        """A long prompt in a long queue is computed later than a prediction lives: its siblings would take it for lost,
        and compute it once more (C12). A replica without a queue that did not compute it never will."""
        with self._lock:
            entries = self._ledger.sent_since(float("-inf"), MAX_RENEWED)
        for entry in entries:
            for start in range(0, len(entry.keys), KEYS_PER_HOLD):
                with self._lock:
                    replica = self._replicas.get(entry.replica_id)
                    if replica is None or not replica.load.has_queue(now):
                        break
                    if entry.first_token or entry.sent_at <= replica.emptied_at:
                        break
                    self._mirror.predict(replica.slot, entry.keys[start : start + KEYS_PER_HOLD], now)

    @property
    def num_reservations(self) -> int:
        with self._lock:
            return len(self._ledger)

    def describe(self, now: float) -> dict[str, dict[str, object]]:
        """Per replica what is known of it, for people."""
        with self._lock:
            found = {}
            for replica_id, replica in self._replicas.items():
                stats = self._mirror.stats(replica.slot)
                found[replica_id] = replica.describe(stats.num_keys, stats.num_refused, now)
            return found

    # With the lock held.

    def _is_over(self, replica_id: str, replica: ReplicaState, now: float) -> bool:
        is_needed = replica_id in self._running or replica.registration is not None or now < replica.failed_until
        return not is_needed and replica.load.idle  # with open reservations its load must still be paired (C4)

    def _on_change(self, replica_id: str, change: LoadChange) -> None:
        self._get(replica_id).load.on_change(change)

"""Which replicas a router knows and which blocks they hold, behind one lock."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import assert_never

from cache.block_hasher import BlockKey
from cache.events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent, Tier
from cache.wire.records import ReplicaRegistration
from router.index.mirror import TABLES_PER_RANGE, IndexMirror, SlotStats
from router.load.replica_state import ReplicaState

KEYS_PER_HOLD = 512
"""So many keys are written in one hold of the lock: the snapshot of a large replica must not stop routing."""
RESET_SHARED_SECONDS = 10.0
"""An event that says so this soon after a reset of all caches speaks of that reset: what was sent since then counts."""
FAILED_SECONDS = 3.0
"""So long a replica that failed is a last resort, and what Redis still says about it is not believed."""
_NOTHING: Mapping[Tier, Sequence[BlockKey]] = MappingProxyType({})


class FollowedReplicas:
    """What the follower's thread writes: incarnations that come and go, their snapshots and events.

    Each public method takes the lock itself and holds it shortly: long lists of keys are written in several holds.
    """

    def __init__(self, mirror: IndexMirror):
        self._lock = threading.Lock()
        self._mirror = mirror
        self._replicas: dict[str, ReplicaState] = {}

    def load_slot(self, keys: Iterable[BlockKey], colder: Mapping[Tier, Sequence[BlockKey]] = _NOTHING) -> int:
        """A new slot with these keys that does not count yet. colder: those of them that do not lie on the device."""
        with self._lock:
            slot = self._mirror.add_slot()
        rest = iter(keys)
        while chunk := list(islice(rest, KEYS_PER_HOLD)):
            with self._lock:
                self._mirror.store(slot, chunk, make_room=False)
        for tier, placed in colder.items():
            for start in range(0, len(placed), KEYS_PER_HOLD):
                with self._lock:
                    self._mirror.place(slot, placed[start : start + KEYS_PER_HOLD], tier)
        return slot

    def adopt(self, registration: ReplicaRegistration, slot: int, now: float) -> bool:
        """From here on `slot` counts for this incarnation. False, and the slot is gone, where the replica just failed.

        Predictions are kept within one incarnation (a resync) and from the time before the first registration.
        """
        with self._lock:
            replica = self._get(registration.replica_id)
            old = replica.slot
            inherits = replica.registration in (None, registration)
            if inherits:
                self._mirror.predictions.name_heir(old, slot)
        for generation in (0, 1) if inherits else ():
            self._bequeath(old, generation)
        with self._lock:
            # Between the holds it may have failed, been emptied or been forgotten: then `old` is no slot any more.
            gone = self._replicas.get(registration.replica_id) is not replica or replica.slot != old
            if gone or now < replica.failed_until:
                self._mirror.predictions.disown(old)
                self._mirror.drop(slot)
                return False
            self._mirror.enliven(slot)
            self._mirror.drop(old)
            replica.slot, replica.registration, replica.foreign = slot, registration, False
            return True

    def _bequeath(self, slot: int, generation: int) -> None:
        with self._lock:
            keys = self._mirror.predictions.keys(generation)
        for start in range(0, len(keys), KEYS_PER_HOLD):
            with self._lock:
                self._mirror.predictions.inherit(slot, keys[start : start + KEYS_PER_HOLD])

    def believes(self, replica_id: str, now: float) -> bool:
        """Whether `adopt` would take this replica now."""
        with self._lock:
            replica = self._replicas.get(replica_id)
            return replica is None or now >= replica.failed_until

    def apply(
        self, registration: ReplicaRegistration, events: Iterable[KVEvent], now: float, make_room: bool = True
    ) -> bool:
        """False where this incarnation does not count any more. make_room: as in `IndexMirror.store`."""
        for event in events:
            match event:
                case CacheCleared():
                    known = self._cache_cleared(registration, now)
                case BlocksStored(keys, tier):
                    known = self._in_holds(registration, keys, partial(self._store, tier=tier, make_room=make_room))
                case BlocksRemoved(keys):
                    known = self._in_holds(registration, keys, self._mirror.remove)
                case _:
                    assert_never(event)
            if not known:
                return False
        return True

    def _in_holds(
        self,
        registration: ReplicaRegistration,
        keys: Sequence[BlockKey],
        change: Callable[[int, Sequence[BlockKey]], None],
    ) -> bool:
        """Changes so few keys in the replica's slot at each hold of the lock that no decision waits long."""
        for start in range(0, len(keys), KEYS_PER_HOLD):
            with self._lock:
                replica = self._current(registration)
                if replica is None:
                    return False
                change(replica.slot, keys[start : start + KEYS_PER_HOLD])
        return True

    def _cache_cleared(self, registration: ReplicaRegistration, now: float) -> bool:
        """What was published is gone. Where a reset was told here before the event came, all that is predicted in this
        slot was sent after it (`clear` renews the slot): the late event must not take that away."""
        with self._lock:
            replica = self._current(registration)
            if replica is None:
                return False
            if now > replica.emptied_at + RESET_SHARED_SECONDS:
                self._empty(replica, now)
                return True
            slot = self._mirror.add_slot()
        return self.adopt(registration, slot, now)

    def withdraw(self, registration: ReplicaRegistration, keys: Sequence[BlockKey]) -> bool:
        """These blocks are not there, though no event says so; False where this incarnation does not count any more."""
        for start in range(0, len(keys), KEYS_PER_HOLD):
            with self._lock:
                replica = self._current(registration)
                if replica is None:
                    return False
                self._mirror.withdraw(replica.slot, keys[start : start + KEYS_PER_HOLD])
        return True

    def published_keys(self, ranges: Iterable[int]) -> list[BlockKey]:
        """Of all replicas, in these ranges of the key space."""
        found = []
        for number in ranges:
            for table in range(TABLES_PER_RANGE * number, TABLES_PER_RANGE * (number + 1)):
                with self._lock:
                    found += self._mirror.published_keys(table)
        return found

    def clear(self, now: float) -> None:
        """All replicas have emptied their caches."""
        with self._lock:
            for replica in self._replicas.values():
                self._empty(replica, now)

    def stats(self, registration: ReplicaRegistration) -> SlotStats | None:
        with self._lock:
            replica = self._current(registration)
            if replica is None:
                return None
            stats = self._mirror.stats(replica.slot)
            return replace(stats, sums=list(stats.sums))

    def has_room(self, num_keys: int) -> bool:
        with self._lock:
            return self._mirror.has_room(num_keys)

    def reset_refused(self, registration: ReplicaRegistration) -> None:
        """Nothing is missing there any more, or what is missing is about to be stored again."""
        with self._lock:
            replica = self._current(registration)
            if replica is not None:
                self._mirror.stats(replica.slot).num_refused = 0

    def mark_foreign(self, replica_id: str, now: float) -> None:
        with self._lock:
            replica = self._get(replica_id)
            if replica.registration is not None:
                self._retire(replica, now)
            replica.foreign = True

    def retire(self, registration: ReplicaRegistration, now: float) -> None:
        """The incarnation is gone: nothing is warm there any more."""
        with self._lock:
            replica = self._current(registration)
            if replica is not None:
                self._retire(replica, now)

    def fail(self, replica_id: str, now: float) -> None:
        """Its slot leaves the live mask at once; what Redis says about it is not believed for FAILED_SECONDS."""
        with self._lock:
            replica = self._get(replica_id)
            replica.failed_until = now + FAILED_SECONDS
            self._retire(replica, now)

    def set_predicted_seconds(self, seconds: float) -> None:
        """How long a prediction lives from now on."""
        with self._lock:
            self._mirror.predictions.seconds = seconds

    @property
    def num_blocks(self) -> int:
        with self._lock:
            return self._mirror.num_blocks

    @property
    def num_refused(self) -> int:
        """Blocks that replicas hold and for which the mirror had no room."""
        with self._lock:
            return sum(self._mirror.stats(replica.slot).num_refused for replica in self._replicas.values())

    # With the lock held.

    def _store(self, slot: int, keys: Sequence[BlockKey], tier: Tier, make_room: bool) -> None:
        self._mirror.store(slot, keys, make_room)
        self._mirror.place(slot, keys, tier)

    def _get(self, replica_id: str) -> ReplicaState:
        replica = self._replicas.get(replica_id)
        if replica is None:
            replica = self._replicas[replica_id] = ReplicaState(self._mirror.add_slot())
            self._mirror.enliven(replica.slot)
        return replica

    def _current(self, registration: ReplicaRegistration) -> ReplicaState | None:
        """None where this incarnation does not count."""
        replica = self._replicas.get(registration.replica_id)
        return replica if replica is not None and replica.registration == registration else None

    def _renew_slot(self, replica: ReplicaState) -> None:
        self._mirror.drop(replica.slot)
        replica.slot = self._mirror.add_slot()
        self._mirror.enliven(replica.slot)

    def _empty(self, replica: ReplicaState, now: float) -> None:
        replica.emptied_at = now
        self._renew_slot(replica)

    def _retire(self, replica: ReplicaState, now: float) -> None:
        replica.registration = None
        self._empty(replica, now)

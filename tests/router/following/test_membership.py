"""Who is taken for dead, and when a stream counts as broken."""

from cache.key_set import range_digests
from cache.wire.records import EventBatch, ReplicaHeartbeat, ReplicaLoad, ReplicaRegistration
from router.following.membership import GRACE_SECONDS, MAX_SUPERSEDED, RETURN_SECONDS, Membership
from router.following.stream import MAX_RESYNC_SECONDS, MIN_RESYNC_SECONDS, FollowedStream
from router.index.mirror import SlotStats
from router.ladder import STALE_BOUND_SECONDS


def registration(replica_id: str, incarnation: str = "1", started_at: float = 1.0) -> ReplicaRegistration:
    return ReplicaRegistration(replica_id, incarnation, bytes(16), 16, 100, started_at)


A, B = registration("a"), registration("b")
BOTH = {"a/1": A, "b/1": B}


def test_one_lease_that_ends_while_another_is_renewed_is_a_death() -> None:
    membership = Membership()
    assert membership.update(BOTH, set(), 0.0) == []
    assert membership.update({"b/1": B}, set(), 1.0) == []
    assert membership.update({"b/1": B}, set(), 1.0 + GRACE_SECONDS) == [A]
    assert set(membership.registrations) == {"b/1"}


def test_a_replica_that_comes_back_within_the_grace_stays() -> None:
    membership = Membership()
    membership.update(BOTH, set(), 0.0)
    membership.update({"b/1": B}, set(), 1.0)
    membership.update(BOTH, set(), 1.2)
    assert membership.update({"b/1": B}, set(), 1.0 + GRACE_SECONDS) == []


def test_c23_all_leases_gone_at_once_is_the_stores_trouble() -> None:
    membership = Membership()
    membership.update(BOTH, set(), 0.0)
    assert membership.update({}, set(), 1.0) == []
    assert membership.update({}, set(), STALE_BOUND_SECONDS) == []
    assert len(membership.update({}, set(), 1.0 + STALE_BOUND_SECONDS)) == 2


def test_a_tombstone_is_believed_at_once() -> None:
    membership = Membership()
    membership.update(BOTH, set(), 0.0)
    assert membership.update({"b/1": B}, {"a/1"}, 0.1) == [A]


def test_42_c19_of_two_incarnations_the_later_one_counts() -> None:
    membership = Membership()
    membership.update(BOTH, set(), 0.0)
    second = registration("a", "2", started_at=2.0)
    assert membership.update({**BOTH, "a/2": second}, set(), 0.1) == [A]
    assert membership.registrations["a/2"] == second
    assert membership.update({**BOTH, "a/2": second}, set(), 0.2) == []
    assert set(membership.registrations) == {"a/2", "b/1"}


def test_58_an_earlier_incarnation_never_counts_again() -> None:
    """It hung, was replaced and wakes up; its successor's lease has just ended."""
    membership = Membership()
    second = registration("a", "2", started_at=2.0)
    membership.update(BOTH, set(), 0.0)
    assert membership.update({"a/2": second, "b/1": B}, set(), 0.1) == [A]
    assert membership.update(BOTH, set(), 0.2) == []
    assert set(membership.registrations) == {"a/2", "b/1"}
    assert membership.update(BOTH, set(), 0.3 + GRACE_SECONDS) == [second]
    assert membership.update(BOTH, set(), 10.0) == []
    assert set(membership.registrations) == {"b/1"}
    third = registration("a", "3", started_at=3.0)
    membership.update({**BOTH, "a/3": third}, set(), 11.0)
    assert membership.registrations["a/3"] == third


def test_58_a_later_incarnation_whose_clock_is_behind_counts_when_the_other_is_gone() -> None:
    membership = Membership()
    behind = registration("a", "2", started_at=0.5)
    membership.update(BOTH, set(), 0.0)
    assert membership.update({**BOTH, "a/2": behind}, set(), 0.1) == []
    assert membership.update({"a/2": behind, "b/1": B}, set(), 0.2) == [A]
    assert membership.registrations["a/2"] == behind


def test_58_a_successor_that_never_lived_has_superseded_nobody() -> None:
    membership = Membership()
    ghost = registration("a", "2", started_at=2.0)
    membership.update(BOTH, set(), 0.0)
    membership.note_heartbeat("a/1")
    assert membership.update({**BOTH, "a/2": ghost}, set(), 1.0) == [A]
    assert membership.update(BOTH, set(), 2.0) == []
    assert membership.update(BOTH, set(), 3.0) == [ghost]
    membership.update(BOTH, set(), 3.0 + RETURN_SECONDS - 0.1)
    assert set(membership.registrations) == {"b/1"}
    membership.update(BOTH, set(), 3.0 + RETURN_SECONDS)
    assert set(membership.registrations) == {"a/1", "b/1"}


def test_58_a_successor_that_lived_has_superseded_for_good() -> None:
    membership = Membership()
    second = registration("a", "2", started_at=2.0)
    membership.update(BOTH, set(), 0.0)
    membership.update({**BOTH, "a/2": second}, set(), 1.0)
    membership.note_heartbeat("a/2")
    membership.note_heartbeat("nobody")
    membership.update(BOTH, set(), 2.0)
    assert membership.update(BOTH, set(), 3.0) == [second]
    membership.update(BOTH, set(), 1000.0)
    assert set(membership.registrations) == {"b/1"}


def test_58_superseded_names_are_bounded() -> None:
    membership = Membership()
    for number in range(3 * MAX_SUPERSEDED):
        name = str(number)
        membership.update({f"a/{name}": registration("a", name, started_at=float(number))}, set(), 0.0)
    assert len(membership._superseded) <= MAX_SUPERSEDED


def heartbeat(seq: int, keys: list[bytes] | None = None) -> ReplicaHeartbeat:
    return ReplicaHeartbeat(ReplicaLoad(), seq, len(keys or []), range_digests(keys or []))


def test_c21_batches_are_applied_in_order_or_not_at_all() -> None:
    stream = FollowedStream.from_snapshot(A, seq=4, now=0.0)
    assert stream.accepts(EventBatch(5, ()))
    assert not stream.accepts(EventBatch(7, ()))
    assert not stream.accepts(EventBatch(6, ()))  # too late: what came between is unknown
    assert stream.broken
    assert stream.seq == 5


def test_c21_batches_that_never_come_are_noticed_by_the_second_heartbeat() -> None:
    stream = FollowedStream.from_snapshot(A, seq=4, now=0.0)
    assert not stream.lost_batches(heartbeat(4))
    assert not stream.lost_batches(heartbeat(6))
    assert stream.accepts(EventBatch(5, ()))
    assert not stream.lost_batches(heartbeat(6))  # moving
    assert stream.lost_batches(heartbeat(6))


def test_c20_drift_is_only_judged_at_the_same_sequence_number() -> None:
    keys = [bytes([n] * 16) for n in (1, 2, 4, 255)]  # in the ranges 0, 0, 1 and 63
    stream = FollowedStream.from_snapshot(A, seq=4, now=0.0)

    def stats(held: list[bytes]) -> SlotStats:
        return SlotStats(len(held), 0, list(range_digests(held)))

    assert stream.drifted_ranges(heartbeat(4, keys), stats(keys)) == []
    assert stream.drifted_ranges(heartbeat(5, keys), stats([])) == []
    assert stream.drifted_ranges(heartbeat(4, keys), stats([])) == [0, 1, 63]
    assert stream.drifted_ranges(heartbeat(4, keys), stats(keys[1:])) == [0]
    assert stream.drifted_ranges(heartbeat(4, keys[:3]), stats(keys)) == [63]


def test_repairs_before_which_no_batch_came_become_rare() -> None:
    stream = FollowedStream.from_snapshot(A, seq=4, now=0.0)
    waits = []
    for _ in range(8):
        stream.note_repair(0.0)
        waits.append(stream.resync_at)
    assert waits[:2] == [MIN_RESYNC_SECONDS, 2 * MIN_RESYNC_SECONDS]
    assert waits[-1] == MAX_RESYNC_SECONDS
    assert stream.accepts(EventBatch(5, ()))
    stream.note_repair(0.0)
    assert stream.resync_at == MIN_RESYNC_SECONDS
    assert stream.accepts(EventBatch(6, ()))
    stream.note_repair(0.0, was_full=True)  # a full mirror may be so again with each batch
    assert stream.resync_at == MAX_RESYNC_SECONDS


def test_resyncs_that_bring_nothing_new_become_rare() -> None:
    stream = FollowedStream.from_snapshot(A, seq=4, now=0.0)
    waits = []
    for _ in range(8):
        stream = FollowedStream.from_snapshot(A, seq=4, now=0.0, before=stream)
        waits.append(stream.resync_at)
    assert waits[0] == 2 * MIN_RESYNC_SECONDS
    assert waits[-1] == MAX_RESYNC_SECONDS
    assert FollowedStream.from_snapshot(A, seq=5, now=0.0, before=stream).resync_at == MIN_RESYNC_SECONDS


def test_a_name_that_is_no_stream_is_looked_for_less_and_less_often() -> None:
    stream, now, waits = FollowedStream.from_snapshot(A, seq=4, now=0.0), 0.0, []
    assert stream.readable(now)
    for _ in range(8):
        stream.note_unreadable(now)
        assert not stream.readable(now)
        waits.append(stream.read_at - now)
        now = stream.read_at
        assert stream.readable(now)
    assert waits[:3] == [MIN_RESYNC_SECONDS, 2 * MIN_RESYNC_SECONDS, 4 * MIN_RESYNC_SECONDS]
    assert waits[-1] == MAX_RESYNC_SECONDS
    stream.broken = True
    assert not stream.readable(now)

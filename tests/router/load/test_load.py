"""Reservations and the load that policies see."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.wire.records import ReplicaLoad
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.load.reservations import TRANSIT_SECONDS, ReservationLedger
from router.load.views import ANSWER_WEIGHT, HEARTBEAT_MAX_AGE_SECONDS, MAX_CHANGES, LoadChange, LoadTracker
from router.router_state import RouterState

LATER = TRANSIT_SECONDS + 0.01


class Tracked:
    """A ledger over two replicas with their trackers."""

    def __init__(self, lease_seconds: float = 900.0) -> None:
        self.trackers = {"a": LoadTracker(), "b": LoadTracker()}
        self.ledger = ReservationLedger(lambda replica, change: self.trackers[replica].on_change(change), lease_seconds)

    def load(self, replica_id: str, now: float) -> tuple[int, int, int]:
        view = self.trackers[replica_id].view(replica_id, 0, now)
        return view.num_waiting, view.num_running, view.queued_prefill_tokens


def test_a_reservation_waits_runs_and_ends() -> None:
    tracked = Tracked()
    tracked.ledger.reserve("r", "a", 100, 0.0)
    assert tracked.load("a", 0.0) == (1, 0, 100)
    tracked.ledger.first_token("r", 1.0)
    tracked.ledger.first_token("r", 1.1)
    assert tracked.load("a", 1.0) == (0, 1, 0)
    assert tracked.ledger.end("r", 2.0) is not None
    assert tracked.ledger.end("r", 2.0) is None
    tracked.ledger.first_token("r", 2.0)
    assert tracked.load("a", 2.0) == (0, 0, 0)
    assert tracked.trackers["a"].idle


def test_reserving_again_moves() -> None:
    tracked = Tracked()
    tracked.ledger.reserve("r", "a", 100, 0.0)
    tracked.ledger.reserve("r", "b", 80, 0.1)
    assert tracked.load("a", 0.1) == (0, 0, 0)
    assert tracked.load("b", 0.1) == (1, 0, 80)
    tracked.ledger.first_token("r", 0.2)
    tracked.ledger.reserve("r", "a", 100, 0.3)  # died after the first token, before any byte was sent
    assert (tracked.load("a", 0.3), tracked.load("b", 0.3)) == ((1, 0, 100), (0, 0, 0))
    assert len(tracked.ledger) == 1


def test_a_lease_ends_what_nobody_ended() -> None:
    tracked = Tracked(lease_seconds=10.0)
    tracked.ledger.reserve("forgotten", "a", 100, 0.0)
    tracked.ledger.reserve("long", "a", 50, 1.0)
    tracked.ledger.first_token("long", 9.0)
    assert tracked.ledger.end_expired(9.9) == 0
    assert tracked.ledger.end_expired(12.0) == 1
    assert tracked.load("a", 12.0) == (0, 1, 0)
    assert tracked.ledger.end_expired(19.0) == 1
    assert tracked.trackers["a"].idle
    with pytest.raises(ValueError, match="lease_seconds"):
        Tracked(lease_seconds=0.0)


steps = st.lists(
    st.tuples(st.sampled_from(["reserve", "first_token", "end", "expire"]), st.integers(0, 5), st.sampled_from("ab")),
    max_size=60,
)


@given(steps)
def test_c4_c5_c11_every_increment_has_one_decrement(history: list[tuple[str, int, str]]) -> None:
    """Whatever is called in whatever order: the load is what is open, and nothing remains when all has ended."""
    tracked = Tracked(lease_seconds=20.0)
    for now, (action, number, replica_id) in enumerate(history):
        request_id = f"request {number}"
        if action == "reserve":
            tracked.ledger.reserve(request_id, replica_id, 10 * (number + 1), float(now))
        elif action == "first_token":
            tracked.ledger.first_token(request_id, float(now))
        elif action == "end":
            tracked.ledger.end(request_id, float(now))
        else:
            tracked.ledger.end_expired(float(now))
        entries = [entry for n in range(6) if (entry := tracked.ledger.get(f"request {n}")) is not None]
        waiting = Counter(entry.replica_id for entry in entries if not entry.first_token)
        running = Counter(entry.replica_id for entry in entries if entry.first_token)
        for replica in "ab":
            tokens = sum(e.prefill_tokens for e in entries if e.replica_id == replica and not e.first_token)
            assert tracked.load(replica, float(now)) == (waiting[replica], running[replica], tokens)
    tracked.ledger.end_expired(1e9)
    assert tracked.trackers["a"].idle
    assert tracked.trackers["b"].idle


def test_a_heartbeat_takes_over_what_it_can_have_seen() -> None:
    tracked = Tracked()
    tracked.ledger.reserve("seen", "a", 100, 0.0)
    tracked.ledger.reserve("on its way", "a", 70, LATER)
    tracked.trackers["a"].on_heartbeat(
        ReplicaLoad(num_running=1, num_waiting=2, queued_prefill_tokens=500), measured_at=LATER
    )
    assert tracked.load("a", LATER) == (3, 1, 570)
    tracked.trackers["a"].on_heartbeat(
        ReplicaLoad(num_running=1, num_waiting=3, queued_prefill_tokens=570), measured_at=2 * LATER + 0.1
    )
    assert tracked.load("a", 2 * LATER + 0.1) == (3, 1, 570)


def test_c6_a_burst_within_one_heartbeat_is_seen() -> None:
    tracked = Tracked()
    tracked.trackers["a"].on_heartbeat(ReplicaLoad(), measured_at=0.0)
    for number in range(10):
        tracked.ledger.reserve(f"r{number}", "a", 20, 0.01)
    assert tracked.load("a", 0.02) == (10, 0, 200)


def test_ends_between_heartbeats_are_seen() -> None:
    tracked = Tracked()
    tracked.ledger.reserve("r", "a", 100, 0.0)
    tracked.ledger.first_token("r", 0.5)
    tracked.trackers["a"].on_heartbeat(ReplicaLoad(num_running=4), measured_at=1.0)
    tracked.ledger.end("r", 1.1)
    assert tracked.load("a", 1.1) == (0, 3, 0)


def test_58_an_older_heartbeat_does_not_replace_a_newer_one() -> None:
    tracker = LoadTracker()
    tracker.on_heartbeat(ReplicaLoad(num_running=1), measured_at=2.0)
    tracker.on_heartbeat(ReplicaLoad(num_running=9), measured_at=1.0)
    assert tracker.view("a", 0, 2.0).num_running == 1


def test_58_an_old_heartbeat_does_not_count() -> None:
    """A replica that was overloaded when Redis went away is not avoided for ever."""
    tracker = LoadTracker()
    tracker.on_heartbeat(ReplicaLoad(num_running=50, num_waiting=50, queued_prefill_tokens=9000), measured_at=0.0)
    assert tracker.view("a", 0, HEARTBEAT_MAX_AGE_SECONDS).num_in_flight == 100
    late = tracker.view("a", 0, HEARTBEAT_MAX_AGE_SECONDS + 0.1)
    assert (late.num_in_flight, late.queued_prefill_tokens) == (0, 0)


def test_a_request_that_no_heartbeat_shows_is_in_flight_all_the_same() -> None:
    """Or a replica would look idle while requests are on their way to it (C5)."""
    tracked = Tracked()
    tracked.ledger.reserve("slow way", "a", 100, 0.0)
    tracked.trackers["a"].on_heartbeat(ReplicaLoad(), measured_at=1.0)
    assert tracked.trackers["a"].view("a", 0, 1.0).num_in_flight == 1


def test_other_routers_requests_count_until_the_heartbeat_shows_them() -> None:
    """Or all routers would choose the same replica between two heartbeats (C9)."""
    tracker = LoadTracker()
    tracker.on_heartbeat(ReplicaLoad(num_waiting=1, queued_prefill_tokens=10), measured_at=0.0)
    tracker.set_others(3, 600)
    view = tracker.view("a", 0, 0.1)
    assert (view.num_waiting, view.queued_prefill_tokens) == (4, 610)


def test_recent_work_is_counted_when_it_is_no_longer_queued_and_fades() -> None:
    """Paced sessions leave nothing in flight, and must be spread all the same (C7)."""
    tracked = Tracked()
    tracker = tracked.trackers["a"]
    tracked.ledger.reserve("r", "a", 400, 0.0)
    tracker.add_recent(400, 0.0)
    assert tracker.view("a", 0, 0.0).recent_prefill_tokens == 0.0
    tracked.ledger.end("r", 1.0)
    fresh = tracker.view("a", 0, 1.0).recent_prefill_tokens
    assert 390 < fresh <= 400
    assert tracker.view("a", 0, 3600.0).recent_prefill_tokens < 0.05 * fresh


def test_changes_are_bounded_without_heartbeats() -> None:
    tracker = LoadTracker()
    for number in range(2 * MAX_CHANGES):
        tracker.on_change(LoadChange(float(number), 1, 0, 1))
        tracker.on_change(LoadChange(float(number), -1, 0, -1))
    assert len(tracker._since) <= MAX_CHANGES
    assert tracker.idle


def test_the_time_an_answer_takes_is_learned_from_its_first_token_on() -> None:
    state = RouterState(IndexMirror())
    for number, seconds in enumerate([2.0, 4.0]):
        state.reserve(f"r{number}", "a", 100, [], 0.0)
        state.first_token(f"r{number}", 10.0)
        state.end(f"r{number}", 10.0 + seconds)
    state.reserve("never began", "a", 100, [], 0.0)
    state.end("never began", 500.0)
    (view,) = state.views(["a"], [], 16, 20.0, Rung.FRESH)
    assert view.answer_seconds == pytest.approx(2.0 + ANSWER_WEIGHT * 2.0)

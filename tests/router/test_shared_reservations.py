"""What routers tell each other of the blocks that their requests bring to a replica (C9, C25)."""

from collections.abc import Sequence

import pytest

from cache.events import BlocksStored, CacheCleared
from cache.wire.records import ReplicaLoad, ReplicaRegistration, Reservation
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.load.reservations import KEYS_SHARED_SECONDS, MAX_SHARED_KEYS, SentElsewhere
from router.router_state import RouterState
from tests.router.policies.shapes import keys
from tests.router.routers import HASHER

PREFIX = keys(("system", 8))
NAMES = ("a", "b")


def state(held: Sequence[bytes] = ()) -> RouterState:
    """Both replicas are registered; `a` holds these blocks."""
    made = RouterState(IndexMirror())
    for name in NAMES:
        registration = ReplicaRegistration(name, name * 2, HASHER.canary, 16, 1000, 0.0)
        made.adopt(registration, made.load_slot(held if name == "a" else ()), 0.0)
    return made


def told(one: RouterState, now: float) -> tuple[Reservation, ...]:
    return one.sent_lately(now, 2.0, 100)


def hits(one: RouterState, wanted: Sequence[bytes], now: float) -> list[int]:
    return [view.hit_tokens // 16 for view in one.views(NAMES, wanted, 16, now, Rung.FRESH)]


def tell(sender: RouterState, receiver: RouterState, now: float) -> None:
    receiver.set_others(
        [SentElsewhere(e.replica_id, now - e.age_seconds, e.prefill_tokens, e.keys) for e in told(sender, now)], now
    )


def test_the_other_router_expects_them() -> None:
    one, other = state(), state()
    one.reserve("r", "b", 128, PREFIX, 1.0)
    assert hits(other, PREFIX, 1.1) == [0, 0]
    tell(one, other, 1.1)
    assert hits(other, PREFIX, 1.1) == [0, 8]


def test_only_what_was_not_known_there_is_told() -> None:
    one = state(held=PREFIX[:5])
    one.reserve("first", "a", 48, PREFIX, 1.0)
    assert [entry.keys for entry in told(one, 1.0)] == [tuple(PREFIX[5:])]
    longer = keys(("system", 8), ("tail", 2))
    one.reserve("sibling", "a", 32, longer, 1.1)
    assert [entry.keys for entry in told(one, 1.1)] == [tuple(longer[8:]), tuple(PREFIX[5:])]
    one.reserve("elsewhere", "b", 128, PREFIX, 1.2)
    assert told(one, 1.2)[0].keys == tuple(PREFIX)


def test_only_for_a_moment_and_the_newest_first() -> None:
    one = state()
    one.reserve("old", "a", 128, PREFIX, 1.0)
    assert [entry.keys for entry in told(one, 1.1 + KEYS_SHARED_SECONDS)] == [()]
    for number in range(3):
        one.reserve(f"huge {number}", "a", 0, keys((f"huge {number}", MAX_SHARED_KEYS - 10)), 1.0)
    newest, cut, *rest = told(one, 1.0)
    assert len(newest.keys) == MAX_SHARED_KEYS - 10
    assert cut.keys == tuple(keys(("huge 1", 10)))
    assert [entry.keys for entry in rest] == [()] * 2


def test_what_a_long_queue_still_has_to_compute_stays_expected_until_its_first_token() -> None:
    """Longer than a prediction lives: its siblings would take it for lost (C12)."""
    one = state()
    one.set_predicted_seconds(10.0)
    one.reserve("r", "b", 128, PREFIX, 0.0)
    for moment in range(1, 60):
        one.on_heartbeat("b", ReplicaLoad(queued_prefill_tokens=128), float(moment))
        one.tend(frozenset(NAMES), float(moment))
        assert hits(one, PREFIX, float(moment)) == [0, 8]
    one.first_token("r", 60.0)
    for moment in range(60, 80):
        one.on_heartbeat("b", ReplicaLoad(queued_prefill_tokens=128), float(moment))
        one.tend(frozenset(NAMES), float(moment))
    assert hits(one, PREFIX, 80.0) == [0, 0]


@pytest.mark.parametrize("load", [ReplicaLoad(), None])
def test_what_a_replica_without_a_queue_never_computed_is_expected_no_longer(load: ReplicaLoad | None) -> None:
    """None: its heartbeats have ended."""
    one = state()
    one.set_predicted_seconds(10.0)
    one.reserve("r", "b", 128, PREFIX, 0.0)
    one.on_heartbeat("b", ReplicaLoad(queued_prefill_tokens=128), 0.5)
    for moment in range(1, 30):
        if load is not None:
            one.on_heartbeat("b", load, float(moment))
        one.tend(frozenset(NAMES), float(moment))
    assert hits(one, PREFIX, 30.0) == [0, 0]


def test_what_was_expected_before_a_reset_is_not_expected_again() -> None:
    one = state()
    one.reserve("r", "b", 128, PREFIX, 0.0)
    one.clear(1.0)
    for moment in range(2, 30):
        one.tend(frozenset(NAMES), float(moment))
    assert hits(one, PREFIX, 30.0) == [0, 0]


def test_an_answered_request_holds_no_keys() -> None:
    """A long prompt's keys are held only as long as somebody may be told of them."""
    one = state()
    one.reserve("r", "b", 128, PREFIX, 1.0)
    one.first_token("r", 1.1)
    entry = one._ledger.get("r")
    assert entry is not None
    assert entry.keys == ()


def test_not_for_a_replica_that_just_failed_or_that_nobody_knows() -> None:
    one, other = state(), state()
    one.reserve("r", "b", 128, PREFIX, 1.0)
    one.reserve("s", "stranger", 128, PREFIX, 1.0)
    other.fail("b", 1.05)
    tell(one, other, 1.1)
    assert hits(other, PREFIX, 1.1) == [0, 0]
    assert "stranger" not in other.describe(1.1)


@pytest.mark.parametrize("how", ["reset", "event", "death", "failure"])
def test_nothing_sent_before_a_cache_was_emptied_is_expected_after_it(how: str) -> None:
    """The record that the other router reads was written before it, and is read again until the next one."""
    one, other = state(), state()
    one.reserve("r", "b", 128, PREFIX, 1.0)
    before = told(one, 1.0)
    for router in (one, other):
        empty(router, how, 1.05)
    for now in (1.06, 1.1, 1.2):
        take(other, before, written_at=1.0, now=now)
    assert told(one, 1.06)[0].keys == ()
    tell(one, other, 1.4)
    take(other, before, written_at=1.0, now=1.45)
    state_again(other)
    assert hits(other, PREFIX, 1.5) == [0, 0]


def test_what_is_sent_after_a_reset_is_expected_as_usual() -> None:
    one, other = state(), state()
    for router in (one, other):
        router.clear(1.0)
    one.reserve("at once", "b", 128, PREFIX, 1.01)
    tell(one, other, 1.3)
    assert hits(one, PREFIX, 1.3) == hits(other, PREFIX, 1.3) == [0, 8]


def test_the_event_of_a_reset_that_is_known_does_not_hide_what_was_sent_since() -> None:
    one, other = state(), state()
    other.clear(1.0)
    one.reserve("r", "b", 128, PREFIX, 1.2)
    empty(other, "event", 1.25)
    tell(one, other, 1.3)
    assert hits(other, PREFIX, 1.3) == [0, 8]


def empty(router: RouterState, how: str, now: float) -> None:
    registration = router._replicas["b"].registration
    assert registration is not None
    match how:
        case "reset":
            router.clear(now)
        case "event":
            assert router.apply(registration, [CacheCleared()], now)
        case "death":
            router.retire(registration, now)
        case "failure":
            router.fail("b", now)


def take(router: RouterState, entries: Sequence[Reservation], written_at: float, now: float) -> None:
    router.set_others(
        [SentElsewhere(e.replica_id, written_at - e.age_seconds, e.prefill_tokens, e.keys) for e in entries], now
    )


def state_again(router: RouterState) -> None:
    """`b` registers again, where it left: predictions from before its registration are its own then."""
    if router._replicas["b"].registration is None:
        registration = ReplicaRegistration("b", "next", HASHER.canary, 16, 1000, 0.0)
        assert router.adopt(registration, router.load_slot(()), 10.0)


def test_a_late_cache_cleared_takes_nothing_that_was_sent_after_the_reset() -> None:
    state = RouterState(IndexMirror())
    registration = ReplicaRegistration("replica-a", "0", HASHER.canary, 16, 10_000, 0.0)
    before, after = HASHER.keys(list(range(64))), HASHER.keys(list(range(100, 164)))

    def hit_tokens(keys: list[bytes], now: float) -> int:
        return state.views(["replica-a"], keys, 16, now, Rung.FRESH)[0].hit_tokens

    assert state.adopt(registration, state.load_slot(before), 1.0)
    state.reserve("old", "replica-a", 64, before, 1.0)
    state.clear(2.0)
    state.reserve("new", "replica-a", 64, after, 2.1)
    assert state.apply(registration, [BlocksStored(tuple(before))], 4.9)  # of before the reset, and late, too
    assert state.apply(registration, [CacheCleared()], 5.0)
    assert (hit_tokens(before, 5.0), hit_tokens(after, 5.0)) == (0, 64)
    assert state.apply(registration, [CacheCleared()], 30.0)  # nobody here asked for this one
    assert hit_tokens(after, 30.0) == 0

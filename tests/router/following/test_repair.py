"""Where the mirror and a replica differ, only those ranges of the key space are fetched and put right (C20)."""

import random
from collections.abc import Iterable, Sequence

import pytest
from prometheus_client import CollectorRegistry

from cache.events import BlocksRemoved, BlocksStored, CacheCleared
from cache.key_set import ALL_RANGES, NUM_RANGES, range_of
from cache.wire.snapshot import encode_key_range
from replica import event_publisher
from router.prefix_router import PrefixRouter
from tests.router.routers import KEYS, PublishedReplica
from tests.router.world import World, expect_mirrored, value
from tests.waiting import wait_until

DRIFT = "warmlane_index_drift_blocks_total"
RESYNCS = "warmlane_index_resyncs_total"


def new_keys(rng: random.Random, number: int, ranges: Sequence[int] = ALL_RANGES) -> list[bytes]:
    return [bytes([rng.choice(ranges) << 2 | rng.randrange(4)]) + rng.randbytes(15) for _ in range(number)]


class Drifting:
    """One replica that holds many blocks, and a router whose mirror the tests make wrong behind its back.

    fetched: (ranges asked for, bytes that came) of each read of a snapshot after the router had joined.
    """

    def __init__(self, world: World, num_keys: int = 6400) -> None:
        self.rng, self.registry = random.Random(7), CollectorRegistry()
        self.replica: PublishedReplica = world.replica()
        self.store(new_keys(self.rng, num_keys))
        self.router: PrefixRouter = world.router(registry=self.registry)
        expect_mirrored(self.router, self.replica)
        self.fetched: list[tuple[list[int], int]] = []
        connection = self.router._follower._connection  # type: ignore[union-attr]
        read = connection.snapshot

        def recorded(member: str, ranges: Iterable[int]) -> list[bytes | None]:
            fields = read(member, ranges)
            self.fetched.append((list(ranges), sum(len(field or b"") for field in fields)))
            return fields

        connection.snapshot = recorded  # type: ignore[method-assign]

    def store(self, keys: Iterable[bytes]) -> None:
        keys = tuple(keys)
        self.replica.held |= set(keys)
        self.replica.publisher.publish([BlocksStored(keys)])

    def remove(self, keys: Iterable[bytes]) -> None:
        keys = tuple(keys)
        self.replica.held -= set(keys)
        self.replica.publisher.publish([BlocksRemoved(keys)])

    def held(self, *ranges: int) -> list[bytes]:
        return sorted(key for key in self.replica.held if range_of(key) in ranges)

    def spoil(self, extra: Iterable[bytes] = (), lost: Iterable[bytes] = ()) -> None:
        """What no event explains."""
        state = self.router._state
        with state._lock:
            slot = state._replicas[self.replica.replica_id].slot
            state._mirror.store(slot, extra)
            state._mirror.withdraw(slot, lost)

    @property
    def drift(self) -> float:
        return value(self.registry, DRIFT)

    @property
    def resyncs(self) -> float:
        return value(self.registry, RESYNCS, reason="drift")

    def expect_repaired(self, num_wrong: int) -> None:
        wait_until(lambda: self.drift >= num_wrong, f"{num_wrong} wrong blocks are counted")
        expect_mirrored(self.router, self.replica)
        assert self.drift == num_wrong


@pytest.fixture
def drifting(up: World) -> Drifting:
    return Drifting(up)


def test_c20_one_wrong_range_is_repaired_with_its_own_bytes(drifting: Drifting) -> None:
    drifting.spoil(extra=new_keys(drifting.rng, 3, [5]), lost=drifting.held(5)[:2])
    drifting.expect_repaired(5)
    [(ranges, num_bytes)] = drifting.fetched
    assert ranges == [5]
    assert num_bytes <= 16 * len(drifting.held(5)) + 40
    assert num_bytes < 16 * len(drifting.replica.held) / 20
    assert drifting.resyncs == 1


@pytest.mark.parametrize("kind", ["extra", "lost", "both"])
def test_c20_several_ranges_at_once(drifting: Drifting, kind: str) -> None:
    wrong = [0, 17, 40, 63]
    extra = [] if kind == "lost" else [key for number in wrong for key in new_keys(drifting.rng, 2, [number])]
    lost = [] if kind == "extra" else [key for number in wrong for key in drifting.held(number)[:3]]
    drifting.spoil(extra, lost)
    drifting.expect_repaired(len(extra) + len(lost))
    assert [ranges for ranges, _ in drifting.fetched] == [wrong]


def test_c20_all_ranges(drifting: Drifting) -> None:
    lost = drifting.held(*ALL_RANGES)
    drifting.spoil(new_keys(drifting.rng, 1000), lost)
    drifting.expect_repaired(1000 + len(lost))
    assert [ranges for ranges, _ in drifting.fetched] == [list(ALL_RANGES)]


def test_what_is_the_same_for_another_replica_stays(up: World) -> None:
    other = up.replica("replica-b")
    drifting = Drifting(up)
    extra = new_keys(drifting.rng, 2, [9])
    other.held |= set(extra)
    other.publisher.publish([BlocksStored(tuple(extra))])
    expect_mirrored(drifting.router, other)
    drifting.spoil(extra=extra)
    drifting.expect_repaired(2)
    expect_mirrored(drifting.router, other)


def test_batches_since_the_snapshot_are_part_of_the_truth(drifting: Drifting) -> None:
    """The snapshot of the replica is older than what is compared: stored, removed and cleared since."""
    before = drifting.held(5)
    drifting.remove(before[:4])
    drifting.store(new_keys(drifting.rng, 6, [5, 6]))
    expect_mirrored(drifting.router, drifting.replica)
    drifting.spoil(extra=before[:1], lost=drifting.held(5)[-2:])
    drifting.expect_repaired(3)
    drifting.replica.held.clear()
    drifting.replica.publisher.publish([CacheCleared()])
    drifting.store(new_keys(drifting.rng, 50))
    expect_mirrored(drifting.router, drifting.replica)
    drifting.spoil(extra=before[:1], lost=drifting.held(*ALL_RANGES)[:1])
    drifting.expect_repaired(5)


def test_while_events_flow(drifting: Drifting) -> None:
    """Stores, removals and new drift all the time; at the end the mirror is exact."""
    num_spoilt = 0
    for turn in range(30):
        for _ in range(20):
            drifting.store(new_keys(drifting.rng, 4))
            drifting.remove(drifting.rng.sample(sorted(drifting.replica.held), 2))
        if turn % 10 == 0:
            ghosts = new_keys(drifting.rng, 3, [turn])
            drifting.spoil(extra=ghosts)
            num_spoilt += 3
            wait_until(lambda expected=num_spoilt: drifting.drift >= expected, "found while events flow")
    expect_mirrored(drifting.router, drifting.replica)
    assert drifting.drift == num_spoilt
    fetched = {tuple(ranges) for ranges, _ in drifting.fetched}
    assert fetched - {tuple(ALL_RANGES)} == {(0,), (10,), (20,)}  # whole only where a slow machine lost the connection


def test_random_drift_is_always_repaired_and_counted(drifting: Drifting) -> None:
    rng, total = random.Random(11), 0
    for _ in range(12):
        ranges = rng.sample(range(NUM_RANGES), rng.choice((1, 2, 5, 30)))
        extra = new_keys(rng, rng.randrange(1, 40), ranges)
        held = drifting.held(*ranges)
        lost = rng.sample(held, rng.randrange(0, min(len(held), 40)))
        drifting.spoil(extra, lost)
        total += len(extra) + len(lost)
        drifting.expect_repaired(total)
        assert drifting.fetched.pop()[0] == sorted({range_of(key) for key in (*extra, *lost)})
        drifting.store(new_keys(rng, rng.randrange(1, 20)))
        expect_mirrored(drifting.router, drifting.replica)
    assert not drifting.fetched


def test_without_the_batches_in_between_it_waits_for_the_next_snapshot(
    up: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has cut the stream, so nobody can say what the range holds: the mirror stays as it is until then."""
    drifting = Drifting(up)
    for _ in range(2):
        drifting.store(new_keys(drifting.rng, 10))
        expect_mirrored(drifting.router, drifting.replica)
    with up.server.client() as client:
        client.xtrim(KEYS.stream(drifting.replica.member), maxlen=1, approximate=False)
    drifting.spoil(lost=drifting.held(8)[:2])
    wait_until(lambda: drifting.fetched, "a repair is tried")
    assert drifting.drift == drifting.resyncs == 0
    monkeypatch.setattr(event_publisher, "SNAPSHOT_BATCHES", 1)
    drifting.store(new_keys(drifting.rng, 10))
    drifting.expect_repaired(2)
    assert {tuple(ranges) for ranges, _ in drifting.fetched} == {(8,)}


def test_a_snapshot_that_is_not_what_the_heartbeat_says_is_not_believed(up: World) -> None:
    drifting = Drifting(up)
    name, ghost = KEYS.snapshot(drifting.replica.member), new_keys(drifting.rng, 1, [8])
    with up.server.client() as client:
        right = client.hget(name, b"8")
        client.hset(name, b"8", encode_key_range(8, ghost))  # what was stored since is in the stream
        drifting.spoil(lost=drifting.held(8)[:2])
        wait_until(lambda: drifting.fetched, "a repair is tried")
        assert drifting.drift == 0
        client.hset(name, b"8", right)
    drifting.expect_repaired(2)

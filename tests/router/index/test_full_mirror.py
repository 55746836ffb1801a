"""A mirror that is too small for all that replicas hold says so, and is whole again when there is room."""

from prometheus_client import CollectorRegistry

from cache.events import BlocksRemoved
from cache.key_set import KeySet
from router.index.mirror import ROOM_PART, IndexMirror
from router.prefix_router import PrefixRouter
from tests.router.routers import PublishedReplica, tokens
from tests.router.world import World, described, expect_mirrored, value
from tests.waiting import wait_until

REFUSED = "warmlane_index_refused_blocks"


def blocks(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in numbers]


def test_there_is_room_for_all_or_for_a_good_part() -> None:
    mirror = IndexMirror(max_blocks=100)
    slot = mirror.add_slot()
    mirror.store(slot, blocks(*range(90)))
    assert mirror.has_room(10)
    assert mirror.has_room(1000)
    mirror.store(slot, blocks(*range(90, 98)))
    assert mirror.has_room(2)
    assert not mirror.has_room(3)
    assert 100 // ROOM_PART > 3
    mirror.store(slot, blocks(98, 99))
    assert not mirror.has_room(0)


def test_a_full_mirror_drops_what_was_not_used_for_longest_and_takes_the_newest() -> None:
    mirror = IndexMirror(max_blocks=100)
    slot, other = mirror.add_slot(), mirror.add_slot()
    mirror.enliven(slot)
    keys = [bytes(14) + bytes([number, 0]) for number in range(200)]
    mirror.store(slot, keys[:100])
    mirror.store(other, keys[:1])
    mirror.predict(slot, keys[:10], 0.0)  # routed by
    mirror.store(slot, keys[100:190])
    assert mirror.num_blocks <= 100
    held = set(mirror.published_keys(0))
    assert held >= {*keys[:10], *keys[100:190]}
    assert mirror.stats(slot).num_keys == len(held)
    assert mirror.stats(slot).num_keys + mirror.stats(slot).num_refused == 190
    assert mirror.stats(slot).digests == KeySet(held).digests
    assert mirror.stats(other).num_keys == 1


def test_a_snapshot_pushes_nothing_out() -> None:
    mirror = IndexMirror(max_blocks=4)
    slot, late = mirror.add_slot(), mirror.add_slot()
    mirror.store(slot, blocks(1, 2, 3, 4))
    mirror.store(late, blocks(4, 5, 6), make_room=False)
    assert mirror.stats(slot).num_keys == 4
    assert (mirror.stats(late).num_keys, mirror.stats(late).num_refused) == (1, 2)


def test_a_refused_block_that_the_replica_gives_up_is_not_missing() -> None:
    mirror = IndexMirror(max_blocks=2)
    slot = mirror.add_slot()
    mirror.store(slot, blocks(1, 2, 3, 4))
    assert mirror.stats(slot).num_refused == 2
    mirror.remove(slot, blocks(1))
    assert mirror.stats(slot).num_refused == 1
    mirror.remove(slot, blocks(2, 4))
    assert (mirror.stats(slot).num_refused, mirror.stats(slot).num_keys) == (0, 1)


def expect_refused(router: PrefixRouter, registry: CollectorRegistry, number: int) -> None:
    wait_until(lambda: value(registry, REFUSED) == number, f"{number} blocks have no room")
    assert router.status()["refused_blocks"] == number
    assert sum(replica["num_refused_blocks"] for replica in described(router).values()) == number


def test_it_is_filled_when_another_replica_gives_up_blocks(up: World) -> None:
    registry = CollectorRegistry()
    first, second = up.replica("replica-a"), up.replica("replica-b")
    router = up.router(registry=registry, max_index_blocks=300)
    first.compute(tokens("first", 16 * 250))
    expect_mirrored(router, first)
    second.compute(tokens("second", 16 * 250))
    expect_refused(router, registry, 200)
    gone = tuple(first.held)
    first.held.clear()
    first.publisher.publish([BlocksRemoved(gone)])
    expect_mirrored(router, first, second)
    expect_refused(router, registry, 0)
    assert value(registry, "warmlane_index_resyncs_total", reason="room") == 1
    assert value(registry, "warmlane_index_drift_blocks_total") == 0  # nothing was lost on the way


def test_it_is_filled_when_a_dead_incarnation_is_swept(up: World) -> None:
    old, other = up.replica("replica-a", incarnation="01", started_at=1.0), up.replica("replica-b")
    router = up.router(max_index_blocks=1200)
    for replica in (old, other):
        replica.compute(tokens(replica.replica_id, 16 * 500))
    expect_mirrored(router, old, other)
    new = PublishedReplica(up.server.url, "replica-a", incarnation="02", started_at=2.0)
    new.compute(tokens("new", 16 * 500))
    new.publisher.start()
    try:
        expect_mirrored(router, other, new)
        assert router.status()["refused_blocks"] == 0
    finally:
        new.publisher.stop()

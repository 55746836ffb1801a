"""What lies in a real Redis is always what the events say, whatever happens to Redis in between."""

import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from cache.events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from cache.key_set import ALL_RANGES, range_digests, range_of
from cache.wire import records as wire
from cache.wire.redis_keys import HISTORY_TTL_SECONDS, LEASE_SECONDS, TOMBSTONE, RedisKeys
from cache.wire.snapshot import SEQ_FIELD, Snapshot, decode_seq, field_names
from replica import event_publisher, redis_publication
from replica.event_publisher import EventPublisher
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

KEYS = RedisKeys("model-a")
REGISTRATION = wire.ReplicaRegistration("replica-1", "00ab", bytes(16), 16, 1000, 1.5)
MEMBER = "replica-1/00ab"


def key(number: int) -> bytes:
    return struct.pack("<QQ", number, number * 7919)


@dataclass
class Published:
    """A publisher under test, the set its events should give, and what a reader finds in Redis."""

    server: ValkeyProcess
    load: Callable[[], wire.ReplicaLoad] = field(default=wire.ReplicaLoad)
    expected: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.publisher = EventPublisher(self.server.url, KEYS, REGISTRATION, lambda: self.load())

    def publish(self, *events: KVEvent) -> None:
        for event in events:
            match event:
                case BlocksStored(keys):
                    self.expected |= set(keys)
                case BlocksRemoved(keys):
                    self.expected -= set(keys)
                case CacheCleared():
                    self.expected.clear()
        self.publisher.publish(events)

    def store(self, *numbers: int) -> None:
        self.publish(BlocksStored(tuple(map(key, numbers))))

    def replayed(self) -> set[bytes] | None:
        """The key set that a joining router would build: snapshot, then every later batch. None where it cannot."""
        with self.server.client() as client:
            fields = client.hmget(KEYS.snapshot(MEMBER), field_names(ALL_RANGES))
            if not all(fields):
                return None
            snapshot = Snapshot.from_fields(fields, ALL_RANGES)
            keys, seq = snapshot.key_set(), snapshot.seq
            for entry_id, fields in client.xrange(KEYS.stream(MEMBER), min=f"({seq}-0"):
                batch = wire.decode_events(fields[b"b"])
                if batch.seq != seq + 1 or entry_id != f"{batch.seq}-0".encode():
                    return None
                seq = batch.seq
                for event in batch.events:
                    keys.apply(event)
            return set(keys)

    def heartbeat(self) -> wire.ReplicaHeartbeat | None:
        with self.server.client() as client:
            (*_, latest) = [None, *(f[b"b"] for _, f in client.xrange(KEYS.heartbeats) if f[b"m"] == MEMBER.encode())]
        return None if latest is None else wire.decode_heartbeat(latest)

    def expect_in_redis(self) -> None:
        wait_until(lambda: self.replayed() == self.expected, "Redis holds what was published")


@pytest.fixture
def published(valkey_process: ValkeyProcess) -> Iterator[Published]:
    published = Published(valkey_process)
    yield published
    published.publisher.stop()


@pytest.fixture
def running(published: Published) -> Published:
    published.server.start()
    published.publisher.start()
    wait_until(lambda: published.publisher.connected, "connected")
    return published


def test_registration_snapshot_stream_and_heartbeat_are_written(running: Published) -> None:
    running.load = lambda: wire.ReplicaLoad(num_running=3, prefill_tokens_per_second=400.0)
    running.store(1, 2, 3)
    running.publish(BlocksRemoved((key(2),)))
    running.expect_in_redis()
    wait_until(
        lambda: (beat := running.heartbeat()) is not None and beat.num_keys == 2, "the heartbeat counts the keys"
    )
    beat = running.heartbeat()
    assert beat is not None
    assert beat.load == wire.ReplicaLoad(num_running=3, prefill_tokens_per_second=400.0)
    assert beat.digests == range_digests(running.expected)
    assert beat.last_seq == running.publisher.last_seq
    with running.server.client() as client:
        assert client.smembers(KEYS.members) == {MEMBER.encode()}
        assert wire.decode_registration(client.get(KEYS.registration(MEMBER))) == REGISTRATION


def test_random_events_replay_to_the_same_set(running: Published) -> None:
    rng = random.Random(5)
    for _ in range(300):
        numbers = [rng.randrange(200) for _ in range(rng.randrange(1, 6))]
        kind = rng.random()
        if kind < 0.6:
            running.store(*numbers)
        elif kind < 0.99:
            running.publish(BlocksRemoved(tuple(map(key, numbers))))
        else:
            running.publish(CacheCleared())
    running.expect_in_redis()


def test_c24_every_key_has_a_ttl_and_one_hash_tag(running: Published) -> None:
    running.store(1)
    wait_until(lambda: running.heartbeat() is not None, "a heartbeat")
    with running.server.client() as client:
        names = client.keys("*")
        lives = {name: client.pttl(name) for name in names}
    assert len(names) == 5
    assert all(0 < life <= 1000 * max(HISTORY_TTL_SECONDS, LEASE_SECONDS) for life in lives.values()), lives
    assert {name.split(b"{")[1].split(b"}")[0] for name in names} == {KEYS.prefix.split("{")[1][:-1].encode()}


def test_two_models_share_no_key() -> None:
    assert RedisKeys("model-b").prefix != KEYS.prefix


def test_c27_redis_absent_at_the_start(published: Published) -> None:
    published.store(1, 2)
    published.publisher.start()
    published.store(3)
    assert not published.publisher.connected
    published.server.start()
    published.expect_in_redis()


def test_flush_is_noticed(running: Published) -> None:
    running.store(1, 2, 3)
    running.expect_in_redis()
    with running.server.client() as client:
        client.flushall()
    running.store(4)
    running.expect_in_redis()
    assert len(running.expected) == 4


@pytest.mark.parametrize("name", ["stream", "snapshot", "registration"])
def test_a_single_lost_key_is_noticed(running: Published, name: str) -> None:
    running.store(1, 2, 3)
    running.expect_in_redis()
    with running.server.client() as client:
        client.delete(getattr(KEYS, name)(MEMBER))
        wait_until(lambda: running.publisher.num_registrations == 2, "registered again")
        assert client.exists(getattr(KEYS, name)(MEMBER))
    running.store(4)
    running.expect_in_redis()


def test_a_replica_declared_dead_by_mistake_registers_again(running: Published) -> None:
    running.store(1)
    with running.server.client() as client:
        client.set(KEYS.registration(MEMBER), TOMBSTONE)
        wait_until(lambda: client.get(KEYS.registration(MEMBER)) != TOMBSTONE, "the tombstone is overwritten")
    wait_until(lambda: running.publisher.num_registrations == 2, "registered again")
    running.expect_in_redis()


def test_killed_and_restarted_empty(running: Published) -> None:
    running.store(1, 2)
    running.expect_in_redis()
    running.server.kill()
    running.store(3)
    wait_until(lambda: not running.publisher.connected, "the loss is noticed")
    running.store(4)
    running.server.start()
    running.expect_in_redis()
    assert len(running.expected) == 4


def test_c27_a_hung_server_does_not_hold_publish_or_stop(running: Published) -> None:
    running.store(1)
    running.expect_in_redis()
    running.server.hang()
    running.store(2)
    wait_until(lambda: not running.publisher.connected, "the hang is noticed")
    running.store(3)
    running.server.wake()
    running.expect_in_redis()
    assert running.expected == {key(1), key(2), key(3)}


def test_snapshots_come_before_the_stream_is_trimmed(running: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "SNAPSHOT_BATCHES", 50)
    monkeypatch.setattr(redis_publication, "STREAM_MAX_BATCHES", 200)
    for number in range(2000):
        running.store(number)
        if number % 10 == 0:  # the publisher joins what is queued: let it write many batches
            seq = running.publisher.last_seq
            wait_until(lambda seq=seq: running.publisher.last_seq > seq or running.publisher._queue.empty(), "sent")
    running.expect_in_redis()
    with running.server.client() as client:
        assert client.xlen(KEYS.stream(MEMBER)) < 400
        assert decode_seq(client.hget(KEYS.snapshot(MEMBER), SEQ_FIELD)) > 50


def test_a_later_snapshot_writes_only_the_ranges_that_changed(
    running: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark on each field shows which of them are written again."""
    monkeypatch.setattr(event_publisher, "SNAPSHOT_BATCHES", 1)
    name, first = KEYS.snapshot(MEMBER), tuple(key(number) for number in range(256))
    running.publish(BlocksStored(first))
    with running.server.client() as client:

        def stored() -> set[bytes]:
            return set(Snapshot.from_fields(client.hmget(name, field_names(ALL_RANGES)), ALL_RANGES).keys())

        wait_until(lambda: stored() == set(first), "the snapshot holds them")
        client.hset(name, mapping=dict.fromkeys(field_names(ALL_RANGES), b"marked"))
        running.publish(BlocksRemoved((key(5),)), BlocksStored((key(9), key(256 + 77))))  # key(9) is there already
        wait_until(lambda: client.hget(name, b"%d" % range_of(key(5))) != b"marked", "a snapshot is written")
        written = {field for field, data in client.hgetall(name).items() if data != b"marked"}
    assert written == {SEQ_FIELD, *(b"%d" % range_of(key(number)) for number in (5, 77))}


def test_a_snapshot_that_lost_a_field_is_written_whole_again(
    running: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.store(1, 2, 3)
    running.expect_in_redis()
    monkeypatch.setattr(event_publisher, "SNAPSHOT_BATCHES", 1)
    with running.server.client() as client:
        client.hdel(KEYS.snapshot(MEMBER), b"%d" % range_of(key(4)))
    running.store(4)
    wait_until(lambda: running.publisher.num_registrations == 2, "registered again")
    running.expect_in_redis()


def test_a_failing_or_nonsensical_load_does_not_stop_the_events(running: Published) -> None:
    def broken() -> wire.ReplicaLoad:
        raise RuntimeError("engine is busy dying")

    running.load = broken
    running.store(1)
    running.expect_in_redis()
    running.load = lambda: wire.ReplicaLoad(decode_step_seconds=math.nan)
    running.store(2)
    running.expect_in_redis()
    assert running.publisher.connected
    assert running.publisher.num_registrations == 1


def test_stop_removes_every_key_of_the_replica(running: Published) -> None:
    running.store(1)
    running.expect_in_redis()
    running.publisher.stop()
    running.publisher.stop()
    with running.server.client() as client:
        assert client.keys("*") == []


def test_without_redis_events_are_counted() -> None:
    publisher = EventPublisher(None, KEYS, REGISTRATION, wire.ReplicaLoad)
    publisher.start()
    publisher.publish([BlocksStored((key(1), key(2))), BlocksRemoved((key(1),)), CacheCleared()])
    assert publisher.num_events == {"stored": 2, "moved": 0, "removed": 1, "cleared": 1}
    assert not publisher.connected
    publisher.stop()

"""What a router makes of the stream of all heartbeats."""

import pytest

from cache.wire.records import ReplicaHeartbeat, ReplicaLoad, encode_heartbeat
from cache.wire.redis_keys import LEASE_SECONDS
from router.following.heartbeat_feed import HeartbeatFeed
from router.following.redis_connection import HeartbeatsRead


def beat(num_running: int) -> bytes:
    return encode_heartbeat(ReplicaHeartbeat(ReplicaLoad(num_running=num_running), 1, 0))


def test_the_latest_of_each_member_counts_and_is_as_old_as_the_server_says() -> None:
    feed = HeartbeatFeed()
    entries = [("1000-0", b"a/1", beat(1)), ("1500-0", b"a/1", beat(2)), ("1500-1", b"b/1", beat(3))]
    assert feed.read(HeartbeatsRead(entries, 2000.0), now=70.0) == {"a/1", "b/1"}
    latest = feed.latest(70.0)
    assert (latest["a/1"].heartbeat.load.num_running, latest["a/1"].written_at) == (2, 69.5)
    assert feed.position == "1500-1"
    assert feed.read(HeartbeatsRead([], 2100.0), now=70.1) == set()
    assert feed.latest(70.1).keys() == {"a/1", "b/1"}
    assert not feed.latest(69.6 + LEASE_SECONDS)


@pytest.mark.parametrize("skew_ms", [-5000.0, 5000.0])
def test_a_step_of_the_servers_clock_costs_at_most_the_beats_of_that_read(skew_ms: float) -> None:
    feed = HeartbeatFeed()
    feed.read(HeartbeatsRead([("9000-0", b"a/1", beat(1))], 9000.0), now=1.0)
    feed.read(HeartbeatsRead([("9250-0", b"a/1", beat(2))], 9250.0 + skew_ms), now=1.25)
    assert "a/1" in feed.latest(1.25)
    assert feed.latest(1.25)["a/1"].written_at <= 1.25


def test_malformed_entries_are_dropped_and_counted() -> None:
    feed = HeartbeatFeed()
    entries = [("1-0", b"a/1", b"x"), ("2-0", b"\xff", beat(1)), ("3-0", b"", b""), ("4-0", b"b/1", beat(1))]
    assert feed.read(HeartbeatsRead(entries, 4.0), now=0.0) == {"b/1"}
    assert (feed.take_malformed(), feed.take_malformed()) == (3, 0)
    assert feed.position == "4-0"

"""Tells all routers, through Redis, which blocks this replica holds and how busy it is."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import assert_never

from redis import RedisError
from redis.exceptions import OutOfMemoryError

from cache.events import BlocksRemoved, BlocksStored, CacheCleared, KVEvent
from cache.key_set import KeySet
from cache.wire.records import EventBatch, ReplicaHeartbeat, ReplicaLoad, ReplicaRegistration, encode_heartbeat
from cache.wire.redis_keys import HEARTBEAT_SECONDS, RedisKeys
from cache.wire.snapshot import Snapshot
from replica.redis_publication import STREAM_MAX_BATCHES, RedisPublication

SNAPSHOT_BATCHES = STREAM_MAX_BATCHES // 4
SNAPSHOT_SECONDS = 30.0
SOCKET_TIMEOUT_SECONDS = 0.5
RETRY_SECONDS = 0.25
FULL_SECONDS = 5.0
"""Between two tries to register with a server that is at the limit of its memory: each sends a whole snapshot."""
STOP_SECONDS = 2.0

logger = logging.getLogger(__name__)


class EventPublisher:
    """One thread owns the connection and the shadow set of keys; `publish` only hands events to it.

    The shadow set is the truth: what was queued or on the wire when Redis went away is in it, so after every reconnect
    (and whenever the server turns out to have lost something) the replica registers again with a snapshot, and nothing
    is lost. Redis may be absent at the start, die, hang, be flushed or come back empty; the engine never notices.
    Without a URL there is no thread, and events are only counted.
    """

    def __init__(
        self,
        redis_url: str | None,
        keys: RedisKeys,
        registration: ReplicaRegistration,
        load: Callable[[], ReplicaLoad],
    ):
        """load: called from the publisher's thread before each heartbeat.

        Raises ValueError for a malformed URL or a registration that cannot be written.
        """
        self._publication = (
            RedisPublication(redis_url, keys, registration, SOCKET_TIMEOUT_SECONDS) if redis_url is not None else None
        )
        self._load = load
        self._last_load = ReplicaLoad()
        self._queue: SimpleQueue[tuple[KVEvent, ...]] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._shadow = KeySet()
        self._pending: list[KVEvent] = []
        self._connected = False
        self._retry_at = self._beat_at = self._snapshot_at = self._full_until = 0.0
        self._last_seq = self._snapshot_seq = 0
        self.num_events = {"stored": 0, "moved": 0, "removed": 0, "cleared": 0}
        """Blocks stored, moved to a colder tier, and removed, and times the whole cache was cleared."""
        self.num_registrations = 0

    @property
    def connected(self) -> bool:
        """Whether the last exchange with Redis went well."""
        return self._connected

    @property
    def last_seq(self) -> int:
        return self._last_seq

    def start(self) -> None:
        if self._publication is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="event-publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sends what is queued and removes this replica's keys, within STOP_SECONDS; harmless to call twice."""
        self._stopping.set()
        self._queue.put(())
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
            self._thread = None

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Called from the engine's thread; neither blocks nor raises. Events must be in order, from one thread."""
        for event in events:
            match event:
                case BlocksStored(keys, tier):
                    self.num_events["stored" if tier == "device" else "moved"] += len(keys)
                case BlocksRemoved(keys):
                    self.num_events["removed"] += len(keys)
                case CacheCleared():
                    self.num_events["cleared"] += 1
                case _:
                    assert_never(event)
        if events and self._publication is not None:
            self._queue.put(tuple(events))

    def _run(self) -> None:
        publication = self._publication
        if publication is None:
            return
        while not self._stopping.is_set():
            self._collect()
            self._guarded_sync(publication)
        self._collect()
        self._guarded_sync(publication)
        if self._connected:
            try:
                publication.remove()
            except (RedisError, OSError) as error:
                logger.warning("could not remove this replica's keys, they expire by themselves: %s", error)
        publication.close()

    def _collect(self) -> None:
        """Waits for events until the next heartbeat or retry is due, then applies all that are queued."""
        due = self._beat_at if self._connected else self._retry_at
        timeout = 0.0 if self._stopping.is_set() else max(0.0, due - time.monotonic())
        try:
            events = self._queue.get(timeout=timeout) if timeout else self._queue.get_nowait()
            while True:
                for event in events:
                    self._shadow.apply(event)
                if self._connected:
                    self._pending.extend(events)
                events = self._queue.get_nowait()
        except Empty:
            return

    def _guarded_sync(self, publication: RedisPublication) -> None:
        try:
            self._sync(publication)
        except Exception as error:  # whatever it was: the thread lives, the next register() repairs all
            if self._connected or not isinstance(error, RedisError | OSError):
                logger.warning("lost Redis, will register again: %s: %s", type(error).__name__, error)
            self._connected = False
            self._pending.clear()
            self._retry_at = time.monotonic() + RETRY_SECONDS
            self._full_until = 0.0
            if isinstance(error, OutOfMemoryError):
                self._full_until = time.monotonic() + FULL_SECONDS

    def _sync(self, publication: RedisPublication) -> None:
        if not self._connected:
            if time.monotonic() < self._retry_at:
                return
            if time.monotonic() < self._full_until:
                publication.hold()
                self._retry_at = time.monotonic() + HEARTBEAT_SECONDS
                return
            publication.connect()
            self._register(publication)
            self._connected = True
            logger.info("registered in Redis with %d blocks", len(self._shadow))
        if self._pending:
            self._last_seq += 1
            publication.send(EventBatch(self._last_seq, tuple(self._pending)))
            self._pending.clear()
        self._maybe_write_snapshot(publication)
        if time.monotonic() >= self._beat_at:
            self._beat(publication)

    def _register(self, publication: RedisPublication) -> None:
        self._shadow.changed.clear()
        snapshot = self._note_snapshot(Snapshot.of(self._last_seq + 1, self._shadow))
        self._last_seq += 2  # also when it fails: no number is used for two different batches
        publication.register(snapshot)
        self._pending.clear()  # all of it is in the snapshot
        self._beat(publication, registered=True)
        self.num_registrations += 1

    def _maybe_write_snapshot(self, publication: RedisPublication) -> None:
        """Only what changed since the last one. Where Redis has lost that, the member is registered again."""
        behind = self._last_seq - self._snapshot_seq
        if behind >= SNAPSHOT_BATCHES or (behind > 1 and time.monotonic() >= self._snapshot_at):
            changed, self._shadow.changed = self._shadow.changed, set()
            snapshot = self._note_snapshot(Snapshot.of(self._last_seq, self._shadow, sorted(changed)))
            if not publication.write_snapshot(snapshot):
                logger.warning("Redis had lost this replica's snapshot: registering again")
                self._register(publication)

    def _note_snapshot(self, snapshot: Snapshot) -> Snapshot:
        self._snapshot_seq, self._snapshot_at = snapshot.seq, time.monotonic() + SNAPSHOT_SECONDS
        return snapshot

    def _beat(self, publication: RedisPublication, registered: bool = False) -> None:
        try:
            load = self._load()
            encode_heartbeat(ReplicaHeartbeat(load, 0, 0))  # a NaN is refused here, not on every beat from now on
            self._last_load = load
        except Exception:
            logger.exception("could not read the engine's load, sending the one before")
        self._beat_at = time.monotonic() + HEARTBEAT_SECONDS
        shadow = self._shadow
        heartbeat = ReplicaHeartbeat(self._last_load, self._last_seq, len(shadow), shadow.digests)
        if not publication.beat(heartbeat) and not registered:
            logger.warning("Redis had lost this replica's keys, or a router had declared it dead: registering again")
            self._register(publication)

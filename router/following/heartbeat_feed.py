"""The latest heartbeat of each member, from the one stream of all."""

from dataclasses import dataclass

from cache.wire import records as wire
from cache.wire.fields import WireError
from cache.wire.redis_keys import LEASE_SECONDS
from router.following.redis_connection import HeartbeatsRead


@dataclass(frozen=True, slots=True)
class Beat:
    """written_at: on the reader's clock, from the age that the server's clock gives."""

    heartbeat: wire.ReplicaHeartbeat
    written_at: float


class HeartbeatFeed:
    """Each entry is decoded once at most: of several of one member, the latest. What is older than a lease is not kept.
    Ages are differences of the server's clock alone, so that no machine's clock needs to agree with another's.
    """

    def __init__(self) -> None:
        self.position = "0-0"
        self._beats: dict[str, Beat] = {}
        self._num_malformed = 0

    def read(self, found: HeartbeatsRead, now: float) -> set[str]:
        """The members of which something new was read."""
        if found.removed:
            self.position = "0-0"
            self._num_malformed += 1
        newest: dict[bytes, tuple[str, bytes]] = {}
        for entry_id, name, data in found.entries:
            newest[name] = (entry_id, data)
            self.position = entry_id
        new = set()
        for name, (entry_id, data) in newest.items():
            age = max(0.0, found.server_ms - int(entry_id.partition("-")[0])) / 1000
            if age > LEASE_SECONDS:
                continue
            try:
                member = name.decode()
                self._beats[member] = Beat(wire.decode_heartbeat(data), now - age)
            except (UnicodeDecodeError, WireError):
                self._num_malformed += 1
            else:
                new.add(member)
        return new

    def take_malformed(self) -> int:
        """How many records were dropped since the last call."""
        number, self._num_malformed = self._num_malformed, 0
        return number

    def latest(self, now: float) -> dict[str, Beat]:
        for member in [name for name, beat in self._beats.items() if now - beat.written_at > LEASE_SECONDS]:
            del self._beats[member]
        return self._beats

"""Connections that wait for the next pull."""

import threading

from replica.messages import PageAddress
from replica.transfer.pull_connection import PullConnection
from replica.transfer.transfer import never


class KeptConnections:
    """A bounded number, the longest unused goes first. From any thread."""

    def __init__(self, max_kept: int):
        self._max_kept = max_kept
        self._kept: list[PullConnection] = []  # the longest unused first
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, address: PageAddress) -> PullConnection | None:
        """One that seems to live; it is the caller's then. What has died meanwhile is closed."""
        with self._lock:
            dead = [connection for connection in self._kept if connection.is_dead]
            alive = [connection for connection in self._kept if connection not in dead]
            found = next((connection for connection in reversed(alive) if connection.address == address), None)
            self._kept = [connection for connection in alive if connection is not found]
        for connection in dead:
            connection.close()
        return found

    def keep(self, connection: PullConnection) -> None:
        connection.allow(0.0, never)  # lets go of who waited
        with self._lock:
            self._kept.append(connection)
            num_kept = 0 if self._is_closed else self._max_kept
            surplus = self._kept[: len(self._kept) - num_kept] if len(self._kept) > num_kept else []
            self._kept = self._kept[len(surplus) :]
        for connection in surplus:
            connection.close()

    def close(self) -> None:
        """What is kept afterwards is closed at once."""
        with self._lock:
            self._is_closed = True
            kept, self._kept = self._kept, []
        for connection in kept:
            connection.close()

"""The replicas that Ray runs right now, as far as this process knows."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

Listener = TypeVar("Listener")
Value = TypeVar("Value")

logger = logging.getLogger(__name__)


class RunningSet:
    """Written by the Ray adapter (in the thread of Ray's router), read by ours, fed by tests.

    Readers take `replicas`, an immutable set that is swapped as a whole, and need no lock. Owners are namespaces: each
    deployment replaces only its own replicas (C39).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_owner: dict[str, frozenset[str]] = {}
        self._replicas: frozenset[str] = frozenset()
        self._listeners: list[Callable[[frozenset[str]], None]] = []
        self._fallback_listeners: list[Callable[[str], None]] = []
        self.fallbacks: Counter[str] = Counter()
        """Requests that Ray sent elsewhere than the router had decided, by reason: unnamed, gone, error."""

    @property
    def replicas(self) -> frozenset[str]:
        """Replica ids (Ray's `unique_id`) of all owners."""
        return self._replicas

    def replace(self, replica_ids: Iterable[str], owner: str = "") -> None:
        """All replicas of one owner, as of now."""
        with self._lock:
            self._by_owner[owner] = frozenset(replica_ids)
            self._swap()

    def discard(self, replica_id: str) -> None:
        """This replica died; whose it was does not matter."""
        with self._lock:
            for owner, replicas in self._by_owner.items():
                self._by_owner[owner] = replicas - {replica_id}
            self._swap()

    def count_fallback(self, reason: str) -> None:
        with self._lock:
            self.fallbacks[reason] += 1
            for listener in self._fallback_listeners:
                _notify(listener, reason)

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Calls `listener` with the new set on every change, in the writer's thread. Returns what ends it."""
        return self._subscribe(self._listeners, listener)

    def subscribe_fallbacks(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Calls `listener` with the reason of each fallback, in the adapter's thread. Returns what ends it."""
        return self._subscribe(self._fallback_listeners, listener)

    def _subscribe(self, listeners: list[Listener], listener: Listener) -> Callable[[], None]:
        with self._lock:
            listeners.append(listener)

        def unsubscribe() -> None:
            with self._lock:
                if listener in listeners:
                    listeners.remove(listener)

        return unsubscribe

    def _swap(self) -> None:
        replicas = frozenset().union(*self._by_owner.values())
        if replicas != self._replicas:
            self._replicas = replicas
            for listener in self._listeners:
                _notify(listener, replicas)


def _notify(listener: Callable[[Value], None], value: Value) -> None:
    """A listener that fails must not fail Ray's router (C38)."""
    try:
        listener(value)
    except Exception:
        logger.exception("a listener of the running set failed")


RUNNING_SET = RunningSet()
"""This process's set: the adapter finds it here, because Ray creates the adapter."""

"""A fleet in front of which several routers stand, each with its own state, as several ingresses do."""

import random
from collections.abc import Iterable, Sequence

from cache.events import KVEvent
from cache.wire.records import ReplicaLoad, ReplicaRegistration
from router.index.mirror import IndexMirror
from router.load.reservations import SentElsewhere
from router.router_state import RouterState
from tests.router.fleet import Fleet

POLL_SECONDS = 0.1


class SharedStates:
    """What replicas publish reaches every state; a request is the business of the router that took it.

    At each exchange a state learns what the others sent of late, as from Redis.
    """

    def __init__(self, num_routers: int):
        self.states = [RouterState(IndexMirror(max_blocks=100_000)) for _ in range(num_routers)]
        self.turn = 0
        self._owner: dict[str, RouterState] = {}
        self._slots: dict[int, list[int]] = {}

    @property
    def current(self) -> RouterState:
        return self.states[self.turn % len(self.states)]

    def load_slot(self, keys: Iterable[bytes]) -> int:
        held = list(keys)
        slots = [state.load_slot(held) for state in self.states]
        self._slots[len(self._slots)] = slots
        return len(self._slots) - 1

    def adopt(self, registration: ReplicaRegistration, slot: int, now: float) -> bool:
        return all(s.adopt(registration, n, now) for s, n in zip(self.states, self._slots[slot], strict=True))

    def on_heartbeat(self, replica_id: str, load: ReplicaLoad, measured_at: float) -> None:
        for state in self.states:
            state.on_heartbeat(replica_id, load, measured_at)

    def apply(self, registration: ReplicaRegistration, events: Sequence[KVEvent], now: float) -> bool:
        taken = [state.apply(registration, events, now) for state in self.states]
        return all(taken)

    def reserve(self, request_id: str, replica_id: str, tokens: int, keys: Sequence[bytes], now: float) -> None:
        self._owner[request_id] = self.current
        self.current.reserve(request_id, replica_id, tokens, keys, now)

    def first_token(self, request_id: str, now: float) -> None:
        self._owner[request_id].first_token(request_id, now)

    def end(self, request_id: str, now: float) -> None:
        self._owner.pop(request_id).end(request_id, now)

    def exchange(self, now: float) -> None:
        lately = [state.sent_lately(now, 2.0, 2000) for state in self.states]
        for number, state in enumerate(self.states):
            others = [entry for sender, entries in enumerate(lately) if sender != number for entry in entries]
            state.set_others(
                (SentElsewhere(e.replica_id, now - e.age_seconds, e.prefill_tokens, e.keys) for e in others), now
            )


class SeveralRouters(Fleet):
    """Requests come to the routers by chance."""

    def __init__(self, num_routers: int, num_replicas: int = 4, policy: str = "expected_finish", seed: int = 1):
        self._shared = SharedStates(num_routers)
        self._arrivals = random.Random(seed)
        super().__init__(0, policy, seed)
        self.state = self._shared  # type: ignore[assignment]
        for _ in range(num_replicas):
            self.add_replica()

    def send(self, *args: object, **fields: object) -> None:
        self._shared.turn = self._arrivals.randrange(len(self._shared.states))
        self.maker._state = self._shared.current
        super().send(*args, **fields)  # type: ignore[arg-type]

    def exchange_until(self, end: float) -> None:
        self._shared.exchange(self.now)
        if self.now < end:
            self.at(POLL_SECONDS, lambda: self.exchange_until(end))

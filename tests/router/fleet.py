"""A fleet of replicas in virtual time, for the policies: everything of the router is real, only the engines are not."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cache.block_hasher import BlockHasher
from cache.events import BlocksStored
from cache.wire.records import ReplicaLoad, ReplicaRegistration
from router.decision import Decision, RouteRequest
from router.decision_maker import DecisionMaker
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.policies.registry import make_policy
from router.router_state import RouterState

HASHER = BlockHasher(bytes(16), "model", 16)
HEARTBEAT_SECONDS = 0.25
EVENT_SECONDS = 0.01


@dataclass
class Engine:
    """Prefills one request after the other, decodes all others at once; a step takes longer the more run."""

    registration: ReplicaRegistration
    prefill_rate: float
    step_base: float
    step_slope: float
    cached: set[bytes] = field(default_factory=set)
    queue: list["Sent"] = field(default_factory=list)
    prefilling: "Sent | None" = None
    decoding: int = 0
    computed_tokens: int = 0
    hit_tokens: int = 0
    num_requests: int = 0
    busy_area: float = 0.0

    @property
    def in_flight(self) -> int:
        return len(self.queue) + self.decoding + (self.prefilling is not None)

    def load(self) -> ReplicaLoad:
        waiting = [*self.queue, *([self.prefilling] if self.prefilling else [])]
        return ReplicaLoad(
            num_running=self.decoding,
            num_waiting=len(waiting),
            queued_prefill_tokens=self.queued_tokens(waiting),
            prefill_tokens_per_second=self.prefill_rate,
            decode_step_seconds=self.step_base + self.step_slope * self.decoding if self.decoding else 0.0,
        )

    def queued_tokens(self, waiting: Sequence["Sent"]) -> int:
        """As the scheduler counts: what one request will compute is not counted again for its siblings."""
        expected, total = set(self.cached), 0
        for sent in waiting:
            tokens = len(sent.request.token_ids)
            usable = sent.decision.block_keys[: (tokens - 1) // 16]
            total += tokens - 16 * next((i for i, key in enumerate(usable) if key not in expected), len(usable))
            expected.update(usable)
        return total

    def uncached(self, sent: "Sent") -> int:
        tokens = len(sent.request.token_ids)
        usable = sent.decision.block_keys[: (tokens - 1) // 16]
        hit = next((i for i, key in enumerate(usable) if key not in self.cached), len(usable))
        return tokens - 16 * hit


@dataclass
class Sent:
    request: RouteRequest
    decision: Decision
    on_done: Callable[[], None]


class Fleet:
    """CPU-like speeds by default. `at` schedules, `run` goes on until nothing is left to do."""

    def __init__(
        self,
        num_replicas: int = 4,
        policy: str = "expected_finish",
        seed: int = 1,
        prefill_rate: float = 400.0,
        step_base: float = 0.046,
        step_slope: float = 0.02,
    ):
        self.now = 1000.0
        self.rng = random.Random(seed)
        self.state = RouterState(IndexMirror(max_blocks=100_000))
        self.policy = make_policy(policy)
        self.maker = DecisionMaker(HASHER, self.state, self.rng, 100_000, self._policy_failed)
        self.engines: dict[str, Engine] = {}
        self.decisions: list[Decision] = []
        self.hits: list[tuple[int, int]] = []
        """Of each request that was prefilled the tokens that were predicted to hit, and those that did."""
        self._speeds = (prefill_rate, step_base, step_slope)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._open = 0
        for _ in range(num_replicas):
            self.add_replica()

    @staticmethod
    def _policy_failed() -> None:
        raise AssertionError("the policy failed")

    def add_replica(self) -> str:
        replica_id = f"replica-{len(self.engines)}"
        registration = ReplicaRegistration(replica_id, "0", HASHER.canary, 16, 10_000, self.now)
        self.engines[replica_id] = Engine(registration, *self._speeds)
        assert self.state.adopt(registration, self.state.load_slot([]), self.now)
        self._beat(replica_id)
        return replica_id

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (self.now + delay, self._num_events, action))

    def send(self, token_ids: Sequence[int], new_tokens: int = 64, on_done: Callable[[], None] = lambda: None) -> None:
        request = RouteRequest(f"request-{len(self.decisions)}", token_ids, new_tokens)
        replicas = frozenset(self.engines)
        decision = self.maker.decide(request, self.policy, replicas, Rung.FRESH, self.now)
        missing = decision.num_tokens - decision.predicted_hit_tokens
        self.state.reserve(request.request_id, decision.replica_id, missing, decision.block_keys, self.now)
        self.decisions.append(decision)
        engine = self.engines[decision.replica_id]
        engine.num_requests += 1
        engine.queue.append(Sent(request, decision, on_done))
        self._open += 1
        self._prefill_next(engine)

    def run(self, seconds: float = float("inf")) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            moment, _, action = heapq.heappop(self._events)
            for engine in self.engines.values():
                engine.busy_area += engine.in_flight * (moment - self.now)
            self.now = moment
            action()

    def _prefill_next(self, engine: Engine) -> None:
        if engine.prefilling is not None or not engine.queue:
            return
        sent = engine.prefilling = engine.queue.pop(0)
        missing = engine.uncached(sent)
        engine.computed_tokens += missing
        hit = len(sent.request.token_ids) - missing
        engine.hit_tokens += hit
        self.hits.append((sent.decision.predicted_hit_tokens, hit))
        self.at(missing / engine.prefill_rate, lambda: self._prefilled(engine, sent))

    def _prefilled(self, engine: Engine, sent: Sent) -> None:
        new = tuple(key for key in sent.decision.block_keys if key not in engine.cached)
        engine.cached.update(new)
        engine.prefilling = None
        self.state.first_token(sent.request.request_id, self.now)
        self.at(EVENT_SECONDS, lambda: self._publish(engine, new))
        engine.decoding += 1
        step = engine.step_base + engine.step_slope * engine.decoding
        self.at(step * sent.request.max_new_tokens, lambda: self._finished(engine, sent))
        self._prefill_next(engine)

    def _publish(self, engine: Engine, keys: tuple[bytes, ...]) -> None:
        assert self.state.apply(engine.registration, [BlocksStored(keys)], self.now)

    def _finished(self, engine: Engine, sent: Sent) -> None:
        engine.decoding -= 1
        self._open -= 1
        self.state.end(sent.request.request_id, self.now)
        sent.on_done()

    def _beat(self, replica_id: str) -> None:
        engine = self.engines[replica_id]
        load, measured_at = engine.load(), self.now
        self.at(0.02, lambda: self.state.on_heartbeat(replica_id, load, measured_at))
        if self._open or self.now < 1001.0 or len(self._events) > len(self.engines):
            self.at(HEARTBEAT_SECONDS, lambda: self._beat(replica_id))

    def counts(self) -> list[int]:
        return [engine.num_requests for engine in self.engines.values()]

    def imbalance(self) -> float:
        """Busiest replica over the mean, of requests in flight averaged over time."""
        areas = [engine.busy_area for engine in self.engines.values()]
        return max(areas) / (sum(areas) / len(areas))

    def precision(self) -> float:
        """Share of the predicted hit tokens that did hit."""
        return sum(min(pair) for pair in self.hits) / sum(predicted for predicted, _ in self.hits)

    def hit_rate(self) -> float:
        hit = sum(engine.hit_tokens for engine in self.engines.values())
        return hit / (hit + sum(engine.computed_tokens for engine in self.engines.values()))


def prompt(*parts: tuple[str, int]) -> list[int]:
    """Token ids of named parts with their lengths; equal names give equal ids."""
    ids: list[int] = []
    for name, length in parts:
        rng = random.Random(name)
        ids += [rng.randrange(50_000) for _ in range(length)]
    return ids

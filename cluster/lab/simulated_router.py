"""One router in virtual time: the real state, decision maker and policy, told what a router would know by then."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random

from cache.block_hasher import BlockHasher, BlockKey
from cache.events import Tier
from cluster.lab.simulated_replica import SimulatedReplica
from router.decision import Decision, RouteRequest
from router.decision_maker import DecisionMaker
from router.following.stream import FollowedStream
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.load.reservations import SentElsewhere
from router.policies.base import Policy
from router.prefix_router import PREDICTED_SECONDS
from router.router_state import RouterState

SENT_LATELY_SECONDS = 2.0
MAX_RESERVATIONS = 2000


class PolicyFailed(RuntimeError):
    """A policy raised or chose nobody; in a simulation that is an error of the policy, not something to survive."""


class SimulatedRouter:
    """Sees events and heartbeats `delay` seconds after they happened, and never the cost model."""

    def __init__(
        self,
        replicas: Sequence[SimulatedReplica],
        hasher: BlockHasher,
        policy: Policy,
        rng: Random,
        delay: float,
        max_model_len: int,
    ):
        self.state = RouterState(IndexMirror(predicted_seconds=PREDICTED_SECONDS))
        self.policy = policy
        self.num_resyncs = 0
        self._delay = delay
        self._maker = DecisionMaker(hasher, self.state, rng, max_model_len, self._on_policy_failure)
        self._running = frozenset(replica.replica_id for replica in replicas)
        self._replicas = replicas
        self._streams = {replica.replica_id: self._join(replica, 0.0, None) for replica in replicas}
        self._num_read = dict.fromkeys(self._running, 0)
        self._beat_at = dict.fromkeys(self._running, float("-inf"))

    def num_read(self, replica_id: str) -> int:
        """How many batches of the replica, from its first on, this router will not read again."""
        return self._num_read[replica_id]

    def route(self, request: RouteRequest, now: float, others: Iterable["SimulatedRouter"] = ()) -> Decision:
        """As `PrefixRouter.route`. The replicas must have advanced to `now`."""
        for replica in self._replicas:
            self._catch_up(replica, now)
        self._note_others(others, now)
        self.state.tend(self._running, now)
        decision = self._maker.decide(request, self.policy, self._running, Rung.FRESH, now)
        self.state.reserve(
            request.request_id,
            decision.replica_id,
            decision.prefill_tokens,
            decision.block_keys,
            now,
            decision.pull_tokens,
            decision.pull_from,
        )
        return decision

    def _catch_up(self, replica: SimulatedReplica, now: float) -> None:
        stream, moment = self._streams[replica.replica_id], now - self._delay
        seen = self._num_read[replica.replica_id]
        first_kept = replica.last_seq - len(replica.batches)
        for position in range(seen - first_kept, len(replica.batches)):
            sent = replica.batches[position]
            if sent.sent_at > moment:
                break
            seen += 1
            if not sent.lost and stream.accepts(sent.batch):
                self.state.apply(stream.registration, sent.batch.events, now)
        self._num_read[replica.replica_id] = seen
        beat = replica.loads.latest(moment)
        if beat is not None and beat.measured_at > self._beat_at[replica.replica_id]:
            self._beat_at[replica.replica_id] = beat.measured_at
            self.state.on_heartbeat(replica.replica_id, beat.load, beat.measured_at)
            if beat.last_seq > stream.seq and seen >= beat.last_seq:
                stream.broken = True  # what the heartbeat speaks of was sent, and is not on its way any more
        if stream.broken and now >= stream.resync_at:
            self._streams[replica.replica_id] = self._join(replica, now, stream)
            self._num_read[replica.replica_id] = replica.last_seq
            self.num_resyncs += 1

    def _join(self, replica: SimulatedReplica, now: float, before: FollowedStream | None) -> FollowedStream:
        manager = replica.scheduler.manager
        keys, tiers = manager.cached_keys(), manager.tiers
        colder: dict[Tier, list[BlockKey]] = defaultdict(list)
        if tiers is not None:
            for key in keys:
                if manager.pool.index.find(key) is None and (tier := tiers.tier_of(key)) is not None:
                    colder[tier].append(key)
        slot = self.state.load_slot(keys, colder)
        if not self.state.adopt(replica.registration, slot, now):
            raise RuntimeError(f"{replica.replica_id} could not join")
        return FollowedStream.from_snapshot(replica.registration, replica.last_seq, now, before)

    def _note_others(self, others: Iterable["SimulatedRouter"], now: float) -> None:
        """What the others sent until `delay` ago, as the polls of Redis since the last decision would have told it."""
        sent = [
            SentElsewhere(entry.replica_id, now - entry.age_seconds, entry.prefill_tokens, entry.keys)
            for other in others
            for entry in other.state.sent_lately(now, SENT_LATELY_SECONDS, MAX_RESERVATIONS, SENT_LATELY_SECONDS)
            if entry.age_seconds >= self._delay
        ]
        self.state.set_others(sent, now)

    def _on_policy_failure(self) -> None:
        raise PolicyFailed(f"policy {self.policy.name} failed, see the log")

"""The router of one ingress: which replica serves a request."""

import logging
import time
from collections.abc import Callable, Mapping
from random import Random

from prometheus_client import CollectorRegistry

from cache.block_hasher import BlockHasher
from cache.wire.records import PolicySetting
from cache.wire.redis_keys import RedisKeys
from router.decision import Decision, DecisionLog, NoReplicas, RouteRequest
from router.decision_maker import DecisionMaker
from router.following.follower import RedisFollower
from router.index.mirror import IndexMirror
from router.ladder import Rung, rung_of
from router.metrics import RouterMetrics
from router.policy_switch import PolicySwitch
from router.router_state import RouterState
from router.running_set import RUNNING_SET, RunningSet

__all__ = ["NoReplicas", "PrefixRouter", "RouteRequest"]

PREDICTED_SECONDS = 10.0
"""Life of a prediction while Redis confirms or denies it soon (C12),"""
PREDICTED_SECONDS_ALONE = 120.0
"""and while predictions are all that the router has."""
JOIN_SECONDS = 3.0
"""A router takes traffic after so long at the latest, with or without Redis (C27)."""

logger = logging.getLogger(__name__)


class PrefixRouter:
    """Hash, look up, let the policy choose, reserve, record. All methods are called from one thread (the ingress's
    event loop) and none does I/O; the follower's thread shares only `RouterState`, which has its own lock.
    """

    def __init__(
        self,
        *,
        model: str,
        hasher: BlockHasher,
        redis_url: str | None,
        policy: str,
        policy_weights: Mapping[str, float],
        registry: CollectorRegistry,
        process: str,
        rng: Random,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
        running_set: RunningSet = RUNNING_SET,
        lease_seconds: float = 900.0,
        max_index_blocks: int = 4_000_000,
        log_capacity: int = 1000,
    ):
        """model: served name. process: this ingress's incarnation, unique among routers. max_model_len: tokens of a
        prompt and its answer. Raises ValueError for an unknown policy or weight, a bad URL or a bound out of range.
        """
        self._clock, self._running_set = clock, running_set
        self._policy = PolicySwitch(policy, policy_weights)
        self.metrics = RouterMetrics(registry, model, process)
        self.log = DecisionLog(log_capacity)
        mirror = IndexMirror(max_blocks=max_index_blocks, predicted_seconds=PREDICTED_SECONDS_ALONE)
        self._state = RouterState(mirror, lease_seconds)
        self._maker = DecisionMaker(
            hasher, self._state, rng, max_model_len, lambda: self.metrics.count_fallback("policy")
        )
        self._started_at = clock()
        self._rung: Rung | None = None
        self._follower: RedisFollower | None = None
        if redis_url is not None:
            keys = RedisKeys(hasher.fingerprint)
            self._follower = RedisFollower(
                redis_url, keys, hasher, self._state, running_set, self._policy, self.metrics, process, clock
            )
        self.metrics.watch_index(
            lambda: self._state.num_blocks,
            lambda: self._state.num_refused,
            self._staleness,
            lambda: rung_of(self._state.last_synced, clock()),
        )

        self._unsubscribe = running_set.subscribe_fallbacks(self.metrics.count_fallback)

    def start(self) -> None:
        self._started_at = self._clock()
        if self._follower is not None:
            self._follower.start()

    def stop(self) -> None:
        self._unsubscribe()
        if self._follower is not None:
            self._follower.stop()

    @property
    def ready(self) -> bool:
        """Whether the index is loaded, or will not be for now: a router is warm before it takes traffic (C17)."""
        loaded = self._follower is None or self._state.last_synced is not None
        return loaded or self._clock() - self._started_at > JOIN_SECONDS

    @property
    def policy(self) -> str:
        return self._policy.policy.name

    @property
    def policy_setting(self) -> PolicySetting:
        return self._policy.setting

    def set_policy(self, name: str, weights: Mapping[str, float]) -> PolicySetting:
        """From the next request on, here and soon in all routers. Raises ValueError for an unknown policy or weight."""
        return self._policy.set(name, weights)

    def configure_policy(self, name: str, weights: Mapping[str, float]) -> None:
        """What counts until somebody sets another policy. Raises ValueError for an unknown policy or weight."""
        self._policy.configure(name, weights)

    def reconfigure_policy(self, name: str, weights: Mapping[str, float]) -> None:
        """The configuration changed while the cluster runs. Raises ValueError for an unknown policy or weight."""
        self._policy.reconfigure(name, weights)

    def adopt_policy(self, setting: PolicySetting) -> bool:
        """Whether this setting is newer than the one in force, which it replaces. Raises ValueError as above."""
        return self._policy.adopt(setting)

    def route(self, request: RouteRequest, exclude: frozenset[str] = frozenset()) -> Decision:
        """Chooses a replica and reserves its load; called again for the same request it moves the reservation.

        exclude: replica ids that this request must not go to. Raises NoReplicas.
        """
        decision = self._decide(request, exclude, sent=True)
        self._state.reserve(
            request.request_id,
            decision.replica_id,
            decision.prefill_tokens,
            decision.block_keys,
            self._clock(),
            decision.pull_tokens,
            decision.pull_from,
        )
        self.log.add(decision)
        self.metrics.observe_decision(decision)
        return decision

    def explain(self, request: RouteRequest) -> Decision:
        """What `route` would decide now; reserves and counts nothing. Raises NoReplicas."""
        return self._decide(request, frozenset(), sent=False)

    def first_token(self, request_id: str) -> None:
        """The answer has begun: its prefill is done. Harmless for a request that is unknown or ended."""
        self._state.first_token(request_id, self._clock())

    def finish(self, request_id: str) -> None:
        """The request ended, however: the one end of its reservation. Harmless when called again."""
        self._state.end(request_id, self._clock())

    def replica_failed(self, replica_id: str) -> None:
        """A replica died or answered with nonsense: nothing is warm there from here on, and other routers are told."""
        self._state.fail(replica_id, self._clock())
        self._policy.policy.forget(replica_id)
        if self._follower is not None:
            self._follower.replica_failed(replica_id)

    def forget_cached(self) -> None:
        """All replicas have emptied their caches: nothing is warm anywhere, whatever is still on its way from Redis."""
        self._state.clear(self._clock())
        for replica_id in self._running_set.replicas:
            self._policy.policy.forget(replica_id)

    def status(self) -> dict[str, object]:
        """For health and debugging."""
        now = self._clock()
        return {
            "ready": self.ready,
            "policy": self._policy.policy.name,
            "weights": dict(self._policy.policy.weights),
            "rung": rung_of(self._state.last_synced, now).name.lower(),
            "redis": "none" if self._follower is None else ("connected" if self._follower.connected else "away"),
            "staleness_seconds": self._staleness(),
            "index_blocks": self._state.num_blocks,
            "refused_blocks": self._state.num_refused,
            "open_reservations": self._state.num_reservations,
            "dropped_records": self.metrics.num_dropped,
            "fallbacks": dict(self._running_set.fallbacks),
            "running": sorted(self._running_set.replicas),
            "replicas": self._state.describe(now),
        }

    def _decide(self, request: RouteRequest, exclude: frozenset[str], sent: bool) -> Decision:
        now = self._clock()
        running = self._running_set.replicas
        self._state.tend(running, now)
        candidates = running - exclude  # what runs now, whatever the index remembers (C18)
        if not candidates:
            raise NoReplicas("no replica is running" if not running else "every running replica was excluded")
        return self._maker.decide(request, self._policy.policy, candidates, self._current_rung(now), now, sent)

    def _current_rung(self, now: float) -> Rung:
        rung = rung_of(self._state.last_synced, now)
        if rung != self._rung:
            if self._follower is not None:
                log = logger.warning if rung > Rung.FRESH else logger.info
                log("routing index is %s (it was %s)", rung.name, self._rung.name if self._rung is not None else "new")
            self._state.set_predicted_seconds(PREDICTED_SECONDS if rung == Rung.FRESH else PREDICTED_SECONDS_ALONE)
            self._rung = rung
        return rung

    def _staleness(self) -> float:
        since = self._state.last_synced
        return max(0.0, self._clock() - (self._started_at if since is None else since))

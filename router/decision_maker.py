"""From a request and the replicas that may serve it to a decision; changes nothing."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from cache.block_hasher import BlockHasher, BlockKey
from router.decision import Decision, Outcome, ReplicaScore, RouteRequest
from router.ladder import RENDEZVOUS_BLOCKS, Rung, rendezvous_choice
from router.load.views import ReplicaView
from router.policies.base import Policy, PolicyChoice, RequestShape
from router.policies.baselines import PowerOfTwoPolicy
from router.router_state import RouterState

logger = logging.getLogger(__name__)


class DecisionMaker:
    """Hashes, looks up, asks the policy, and falls back where there is no index to ask or the policy fails."""

    def __init__(
        self,
        hasher: BlockHasher,
        state: RouterState,
        rng: Random,
        max_model_len: int,
        on_policy_failure: Callable[[], None],
    ):
        self._hasher, self._state, self._rng = hasher, state, rng
        self._max_model_len = max_model_len
        self._on_policy_failure = on_policy_failure
        self._last_resort = PowerOfTwoPolicy()

    def decide(
        self,
        request: RouteRequest,
        policy: Policy,
        replica_ids: frozenset[str],
        rung: Rung,
        now: float,
        sent: bool = True,
    ) -> Decision:
        """replica_ids: at least one. sent: whether the request will go there, so that the policy remembers it."""
        started = time.perf_counter()
        num_tokens, block_size = len(request.token_ids), self._hasher.block_size
        keys = self._hash(request)
        usable = keys[: max(0, num_tokens - 1) // block_size]  # the last token is always computed (A1)
        hashed = time.perf_counter()
        views = self._state.views(self._state.usable(replica_ids, now), usable, block_size, now, rung)
        looked_up = time.perf_counter()
        shape = self._shape(request, keys)
        choice, rung, fell_back = self._choose(policy, shape, request, views, rung, now)
        if sent:
            self._remember(policy, shape, choice.replica_id, views, now)
        chosen = next(view for view in views if view.replica_id == choice.replica_id)
        reachable = max(view.hit_tokens for view in views)
        ended = time.perf_counter()
        return Decision(
            request_id=request.request_id,
            replica_id=chosen.replica_id,
            policy=policy.name,
            outcome=_outcome(chosen.hit_tokens, reachable, bool(usable), fell_back),
            rung=rung,
            reason=choice.reason,
            num_tokens=num_tokens,
            predicted_hit_tokens=chosen.hit_tokens,
            reachable_hit_tokens=reachable,
            scores=_scores(views, choice, block_size, None if sent or fell_back else policy.score_parts(shape, views)),
            phase_seconds={
                "hash": hashed - started,
                "lookup": looked_up - hashed,
                "score": ended - looked_up,
                "total": ended - started,
            },
            block_keys=tuple(keys),
            **self._pull(choice, chosen),
        )

    def _pull(self, choice: PolicyChoice, chosen: ReplicaView) -> dict[str, Any]:
        """pull_seconds: what the view expects, in proportion where the policy takes another number of tokens."""
        if not choice.pulls:
            return {}
        pull_from = choice.pull_from or chosen.pull_from
        num_tokens = choice.pull_tokens or chosen.pull_tokens
        pages_at = self._state.pages_at(pull_from)
        if not pages_at or not num_tokens:
            return {}
        seconds = chosen.pull_seconds * num_tokens / chosen.pull_tokens if chosen.pull_tokens else 0.0
        return {
            "pull_from": pull_from, "pull_tokens": num_tokens, "pull_seconds": seconds, "pages_at": pages_at,
        }  # fmt: skip

    def _hash(self, request: RouteRequest) -> list[BlockKey]:
        try:
            return self._hasher.keys(request.token_ids, request.extra_keys)
        except (OverflowError, TypeError, ValueError):  # ids that no vocabulary has; the engine refuses them (19)
            return []

    def _shape(self, request: RouteRequest, keys: Sequence[BlockKey]) -> RequestShape:
        num_tokens = len(request.token_ids)
        return RequestShape(
            num_tokens,
            max(0, min(request.max_new_tokens, self._max_model_len - num_tokens)),
            keys,
            self._hasher.block_size,
            request.session_id,
        )

    def _remember(
        self, policy: Policy, shape: RequestShape, replica_id: str, views: Sequence[ReplicaView], now: float
    ) -> None:
        try:
            policy.on_sent(shape, replica_id, views, now)
        except Exception:  # the request goes out all the same (C38)
            logger.exception("policy %s failed to remember a request", policy.name)
            self._on_policy_failure()

    def _choose(
        self,
        policy: Policy,
        shape: RequestShape,
        request: RouteRequest,
        views: Sequence[ReplicaView],
        rung: Rung,
        now: float,
    ) -> tuple[PolicyChoice, Rung, bool]:
        """The choice, the rung that made it, and whether that was not the policy."""
        blind = policy.uses_index and rung >= Rung.RENDEZVOUS and not any(view.hit_tokens for view in views)
        if blind and (affinity := _affinity(request, shape.block_keys)):
            chosen = rendezvous_choice(affinity, views)
            return PolicyChoice(chosen.replica_id, "no index: rendezvous hash of the prefix"), Rung.RENDEZVOUS, True
        if not blind:
            try:
                choice = policy.choose(shape, views, now, self._rng)
                if any(view.replica_id == choice.replica_id for view in views):
                    return choice, rung, False
                logger.error("policy %s chose %s, which is no candidate", policy.name, choice.replica_id)
            except Exception:
                logger.exception("policy %s failed", policy.name)
            self._on_policy_failure()
        return self._last_resort.choose(shape, views, now, self._rng), Rung.POWER_OF_TWO, True


def _outcome(predicted: int, reachable: int, scored: bool, fell_back: bool) -> Outcome:
    if fell_back:
        return Outcome.FALLBACK
    if not scored:
        return Outcome.UNSCORED
    if not reachable:
        return Outcome.COLD
    return Outcome.WARM if predicted == reachable else Outcome.LOAD_DIVERTED


def _scores(
    views: Sequence[ReplicaView],
    choice: PolicyChoice,
    block_size: int,
    parts: Mapping[str, Mapping[str, float]] | None,
) -> tuple[ReplicaScore, ...]:
    return tuple(
        ReplicaScore(
            view.replica_id,
            choice.scores.get(view.replica_id),
            view.hit_tokens // block_size,
            view.num_running,
            view.num_waiting,
            view.queued_prefill_tokens,
            None if parts is None else parts.get(view.replica_id, {}),
            view.host_tokens // block_size,
            view.disk_tokens // block_size,
            view.restore_seconds,
            view.pull_tokens,
            view.pull_from,
            view.pull_seconds,
        )
        for view in views
    )


def _affinity(request: RouteRequest, keys: Sequence[BlockKey]) -> bytes:
    """What is hashed where there is no index: the session, else the head of the prompt; empty without either."""
    if request.session_id:
        return request.session_id.encode()
    return keys[min(len(keys), RENDEZVOUS_BLOCKS) - 1] if keys else b""

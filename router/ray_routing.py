"""What the Ray adapter does, in a module that is imported and not pickled. Nothing here raises.

An exception inside Ray's router is only logged there, and the request hangs for ever (C38).
"""

import logging
import random
from collections.abc import Iterable, Sequence
from typing import Any

from router.running_set import RUNNING_SET

ROUTE_TO = "route_to"
"""Keyword of the handle call that names the chosen replica's `unique_id`."""
MAX_ROUTING_TASKS = 4096
"""Ray's default of two per replica lets requests for idle replicas wait behind those for full ones."""

logger = logging.getLogger(__name__)


def choose(candidates: Sequence[Any], pending_request: Any) -> list[list[Any]]:
    """Ray's ranks: only the replica that the caller named; where it is gone or unnamed, any that lives, counted.

    candidates: what has `replica_id.unique_id`. pending_request: Ray's, or None.
    """
    try:
        named = None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else a full replica is probed in a hot loop
            named = pending_request.kwargs.get(ROUTE_TO)
        for candidate in candidates:
            if candidate.replica_id.unique_id == named:
                return [[candidate]]
        RUNNING_SET.count_fallback("unnamed" if named is None else "gone")
    except Exception:
        logger.exception("could not follow the routing decision, any replica will do")
        RUNNING_SET.count_fallback("error")
    return [[random.choice(candidates)]] if candidates else []


def replicas_changed(deployment: str, replica_ids: Iterable[str]) -> None:
    try:
        RUNNING_SET.replace(replica_ids, owner=deployment)
    except Exception:
        logger.exception("could not take over Ray's replicas")


def replica_died(replica_id: str) -> None:
    try:
        RUNNING_SET.discard(replica_id)
    except Exception:
        logger.exception("could not take %s out of the running set", replica_id)

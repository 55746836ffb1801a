"""What the ingress asks the router."""

from collections.abc import Sequence
from dataclasses import dataclass

from cache.block_hasher import NO_EXTRA_KEYS, ExtraKeys


class NoReplicas(RuntimeError):
    """Nothing runs, or everything that runs was excluded."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """request_id: unique in the cluster; reservations are keyed by it. session_id: whose prompts belong together."""

    request_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    extra_keys: ExtraKeys = NO_EXTRA_KEYS
    session_id: str | None = None

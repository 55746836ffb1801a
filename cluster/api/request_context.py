"""What is known of a request besides its body."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from cache.block_hasher import ExtraKeys
from cluster.api.errors import bad_request
from cluster.api.gate import tenant_of
from cluster.api.session import session_of
from cluster.api.tenants import Tenant
from cluster.local.haproxy_launcher import PASSED_TIMEOUT_HEADER, TIMEOUT_HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """arrival_seconds: `time.monotonic()` before the body was read. deadline_seconds: when all must be over.

    tenant: None where the cluster has no keys.
    """

    arrival_seconds: float
    deadline_seconds: float
    session_id: str | None = None
    tenant: Tenant | None = None

    def extra_keys(self, cache_salt: str | None) -> ExtraKeys:
        """cache_salt: the caller's own; a tenant's pages lie in its own space whatever the caller says."""
        return ExtraKeys(cache_salt=cache_salt if self.tenant is None else self.tenant.cache_salt(cache_salt))


def context_of(
    request: Request, fields: Mapping[str, Any], arrival_seconds: float, longest_seconds: float
) -> RequestContext:
    """longest_seconds: the time that any request may take. Raises ApiError 400 for a malformed timeout."""
    session_id, tenant = session_of(request, fields), tenant_of(request)
    if session_id is not None and tenant is not None:
        session_id = f"{tenant.name}/{session_id}"
    return RequestContext(
        arrival_seconds=arrival_seconds,
        deadline_seconds=arrival_seconds + min(longest_seconds, _timeout(request)),
        session_id=session_id,
        tenant=tenant,
    )


def explain_context(request: Request, fields: Mapping[str, Any]) -> RequestContext:
    """For a request that is not run."""
    return context_of(request, fields, time.monotonic(), math.inf)


def _timeout(request: Request) -> float:
    given = request.headers.get(PASSED_TIMEOUT_HEADER, request.headers.get(TIMEOUT_HEADER))
    if given is None:
        return math.inf
    try:
        seconds = float(given) if "_" not in given else math.nan  # Python's float takes 1_000
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise bad_request(f"{TIMEOUT_HEADER} must be a positive number of seconds, got {given[:50]!r}", TIMEOUT_HEADER)
    return seconds

"""What is known of a request besides its body: its id, which is echoed and never used (39), its session, its
deadline, its tenant."""

import math
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cache.block_hasher import ExtraKeys
from cluster.api.authentication import tenant_of
from cluster.api.errors import ApiError, bad_request
from cluster.api.header_names import PASSED_TIMEOUT_HEADER, TIMEOUT_HEADER
from cluster.api.tenants import Tenant

MAX_REQUEST_ID_CHARACTERS = 256
_PRINTABLE = re.compile(r"[\x21-\x7e]+( +[\x21-\x7e]+)*")


class RequestIdMiddleware:
    """Refuses ids that are too long or not printable, and echoes the others; makes one where the client has none."""

    def __init__(self, app: ASGIApp, echo: bool = True):
        """echo: False behind Ray Serve, which puts the header into every response itself."""
        self._app = app
        self._echo = echo

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        if given is not None and (len(given) > MAX_REQUEST_ID_CHARACTERS or not _is_printable(given)):
            message = f"X-Request-Id must have at most {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters."
            status = 431 if len(given) > MAX_REQUEST_ID_CHARACTERS else 400
            await ApiError(status, message, param="X-Request-Id").response()(scope, receive, send)
            return
        if not self._echo:
            await self._app(scope, receive, send)
            return
        request_id = given.decode("latin-1") if given is not None else f"req-{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def _is_printable(value: bytes) -> bool:
    return _PRINTABLE.fullmatch(value.decode("latin-1")) is not None


SESSION_HEADER = "x-session-id"
MAX_SESSION_CHARACTERS = 256


def session_of(request: Request, fields: Mapping[str, Any]) -> str | None:
    """The header X-Session-Id, else the body's `prompt_cache_key`, else None.

    It only says where a request is best routed (see the policy `session_hash`); no answer depends on it.
    """
    for value in (request.headers.get(SESSION_HEADER), fields.get("prompt_cache_key")):
        if isinstance(value, str) and value:
            return value[:MAX_SESSION_CHARACTERS]
    return None


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

"""Whether an ingress admits a request for text now: not while the cluster stops, and not beyond a tenant's limits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.authentication import tenant_of
from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.paths import LIMITED_PATHS, TEXT_PATHS, path_of
from cluster.api.tenant_limits import TenantLimits

RETRY_AFTER_SECONDS = 5.0
"""By then another cluster, or this one started again, may answer."""


class Drain:
    """Once begun it admits nobody, so that what is in flight can finish before the cluster stops."""

    def __init__(self) -> None:
        self.num_in_flight = 0
        self._begun = False

    def begin(self) -> None:
        self._begun = True

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Around one request. Raises ApiError 503 once the drain has begun."""
        if self._begun:
            raise ApiError(
                503, "The cluster is stopping.", type=SERVER_ERROR, code="stopping",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )  # fmt: skip
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1


class Admission:
    """ASGI middleware behind `Authentication`, which says whose limits count."""

    def __init__(
        self, app: ASGIApp, *, on_refusal: Callable[[BaseException], None], limits: TenantLimits, drain: Drain
    ):
        """on_refusal: told of each request for text that was not admitted. limits: those of this ingress."""
        self._app = app
        self._on_refusal = on_refusal
        self._limits = limits
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or path_of(scope) not in LIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            with self._drain.admitted():
                await self._within_limits(scope, receive, send)
        except ApiError as error:
            if path_of(scope) in TEXT_PATHS:
                self._on_refusal(error)
            await error.response()(scope, receive, send)

    async def _within_limits(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = tenant_of(Request(scope))
        if tenant is None:
            await self._app(scope, receive, send)
            return
        with self._limits.admitted(tenant) as leave:
            await self._app(scope, receive, _ending_with(send, leave))


def _ending_with(send: Send, leave: Callable[[], None]) -> Send:
    """The place is free before the answer's last byte is out, so that a client may send its next request at once."""

    async def ending(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            leave()
        await send(message)

    return ending

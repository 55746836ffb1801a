"""`X-Request-Id`: checked and given back, never used inside (39)."""

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.errors import ApiError

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

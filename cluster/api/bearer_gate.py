"""Lets in who holds the one key there is; for an API that knows no tenants."""

import hmac

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.errors import ApiError
from cluster.api.tenants import key_hash

OPEN_PATH = "/health"
"""For whoever has to know whether this is alive; it tells nothing else."""


class BearerGate:
    """ASGI application around another one: everything but `/health` needs `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, key: str):
        self._app = app
        self._key_hash = key_hash(key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != OPEN_PATH and not self._has_key(Request(scope)):
            refusal = ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
            await refusal.response({"www-authenticate": "Bearer"})(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, request: Request) -> bool:
        """Takes as long whatever key is given."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return hmac.compare_digest(key_hash(key.strip()), self._key_hash) and scheme.lower() == "bearer"

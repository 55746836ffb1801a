"""Which pages of other origins a browser lets use the OpenAI API: those of `--cors-origins`."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.paths import CORS_PREFIXES, path_of

_ANSWER_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-warmlane-replica",
    "x-warmlane-decision-outcome",
    "x-warmlane-predicted-hit-tokens",
)
_PREFLIGHT_SECONDS = 600


class Cors:
    """ASGI middleware: answers preflights and marks answers, for the paths of the OpenAI API alone. Keys are sent as
    `Authorization`; cookies and the like (credentials) are never asked for."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]):
        """origins: as browsers send them, or "*" alone for all."""
        self._app = app
        self._with_cors = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_ANSWER_HEADERS,
            max_age=_PREFLIGHT_SECONDS,
            allow_private_network=True,  # browsers ask before a page of the internet reaches a cluster on loopback
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and path_of(scope).startswith(CORS_PREFIXES)
        await (self._with_cors if is_api else self._app)(scope, receive, send)

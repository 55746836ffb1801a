"""What web pages may do: a browser sends the requests of other sites from where the cluster trusts everybody, so they
are kept out, but for the origins of `--cors-origins`."""

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.errors import ApiError, bad_request
from cluster.api.paths import CORS_PREFIXES, is_admin_path, is_open_to_other_sites, path_of

ANY_ORIGIN = "*"
_OWN_SITE = ("same-origin", "none")
"""Of `Sec-Fetch-Site`; none: a person typed the address, or it is no browser's page at all."""
_ANSWER_HEADERS = (
    "x-request-id",
    "retry-after",
    "x-warmlane-replica",
    "x-warmlane-decision-outcome",
    "x-warmlane-predicted-hit-tokens",
)
_PREFLIGHT_SECONDS = 600


class BrowserGuard:
    """ASGI middleware. Programs send no `Origin` and no `Sec-Fetch-Site`, so they never notice it.

    - A page of another origin is refused (403), for reading too, unless its origin may use this path. A form or an
      image needs no permission to be sent, so it does not help that such a page could not read the answer.
      `--cors-origins` opens the OpenAI API, never administration.
    - Where the cluster listens on loopback alone, a `Host` that is not this machine is refused: a name that its owner
      points at 127.0.0.1 makes a page of another site one of our own (DNS rebinding).
    - A body for administration must say that it is JSON, which no form can.
    """

    def __init__(self, app: ASGIApp, cors_origins: Collection[str] = (), own_hosts_only: bool = False):
        """cors_origins: such as https://chat.example, or "*". own_hosts_only: refuse foreign names; those of
        cors_origins are not."""
        self._app = app
        self._cors_origins = frozenset(cors_origins)
        self._own_hosts_only = own_hosts_only
        self._more_hosts = frozenset(urlsplit(origin).hostname or "" for origin in cors_origins) - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(Headers(scope=scope), path_of(scope), scope["method"])
            except ApiError as error:
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers, path: str, method: str) -> None:
        """Raises ApiError."""
        if is_open_to_other_sites(path):
            return
        host = headers.get("host", "")
        # A client of HTTP/1.0 may have no Host; every browser sends one.
        has_host = bool(host) or "origin" in headers or "sec-fetch-site" in headers
        if self._own_hosts_only and has_host and not self._is_own(host):
            raise ApiError(
                403,
                f"This cluster listens on loopback alone and does not answer to the name {host[:100]!r}; use localhost "
                "(a proxy in front must send that as Host) or name its origin in --cors-origins.",
                code="foreign_host",
            )
        if self._is_foreign_page(headers, host, path, method):
            raise ApiError(
                403,
                "A web page of another origin may not use this path; --cors-origins names those that may use the API.",
                code="foreign_origin",
            )
        if is_admin_path(path):
            _check_content_type(headers)

    def _is_own(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname or "") if _is_readable(host) else ""
        if name == "localhost" or name.endswith(".localhost") or name in self._more_hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _is_foreign_page(self, headers: Headers, host: str, path: str, method: str) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and not is_admin_path(path) and {origin, ANY_ORIGIN} & self._cors_origins:
            return False
        if site is not None:
            is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
            return site not in _OWN_SITE and not is_link
        return origin is not None and origin.partition("://")[2].lower() != host.lower()


def _check_content_type(headers: Headers) -> None:
    given = headers.get("content-type")
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if (given is not None or has_body) and (given or "").partition(";")[0].strip().lower() != "application/json":
        raise bad_request(f"The content type must be application/json, got {(given or '')[:100]!r}.")


def _is_readable(host: str) -> bool:
    try:
        urlsplit(f"//{host}").port  # noqa: B018 - raises for what is no port
    except ValueError:
        return False
    return True


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

"""The ASGI application: which path goes where, and that every error has the official form."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cluster.api.admission import Admission, Drain
from cluster.api.authentication import Authentication
from cluster.api.browser_guard import BrowserGuard, Cors
from cluster.api.chat_request import ChatCompletionRequest
from cluster.api.completion_request import CompletionRequest
from cluster.api.errors import ApiError
from cluster.api.failures import from_exception
from cluster.api.generation_api import GenerationApi
from cluster.api.model_api import DetokenizeRequest, ModelApi, TokenizeRequest
from cluster.api.openapi import operation
from cluster.api.request_context import RequestIdMiddleware
from cluster.api.tenant_limits import TenantLimits
from cluster.api.tenants import ApiKeys

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
Report = Callable[[BaseException], None]


def _no_report(error: BaseException) -> None:
    """For paths that are not counted as requests for text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """keys: None lets everybody in. admin_open: see `Authentication`. limits, drain: see `Admission`. cors_origins,
    own_hosts_only: see `BrowserGuard`."""

    keys: ApiKeys | None = None
    admin_open: bool = True
    limits: TenantLimits = field(default_factory=TenantLimits)
    drain: Drain = field(default_factory=Drain)
    cors_origins: tuple[str, ...] = ()
    own_hosts_only: bool = False


def build_http_app(
    generation: GenerationApi,
    models: ModelApi,
    operations: Mapping[tuple[str, str], Handler],
    on_failure: Report,
    echo_request_id: bool = True,
    access: Access | None = None,
) -> FastAPI:
    """operations: (method, path) -> handler of what is not the OpenAI API: health, metrics, explanations.

    on_failure: told of every exception that refused a request for text. Bodies are read by the handlers themselves and
    not by FastAPI, whose own errors (422) no OpenAI client understands.
    """
    app = FastAPI(
        title="Warmlane",
        description="OpenAI-compatible API of a Warmlane cluster.",
        redirect_slashes=False,  # it would send clients to whatever host they named
    )
    access = access or Access()
    app.add_middleware(Admission, on_refusal=on_failure, limits=access.limits, drain=access.drain)
    app.add_middleware(Authentication, keys=access.keys, on_refusal=on_failure, admin_open=access.admin_open)
    app.add_middleware(BrowserGuard, cors_origins=access.cors_origins, own_hosts_only=access.own_hosts_only)
    app.add_middleware(RequestIdMiddleware, echo=echo_request_id)
    if access.cors_origins:  # the outermost: a page must be able to read a refusal too
        app.add_middleware(Cors, origins=access.cors_origins)

    def add(
        method: str, path: str, handler: Handler, body: type[BaseModel] | None = None, report: Report = _no_report
    ) -> None:
        endpoint = _guarded(handler, report)
        app.add_api_route(path, endpoint, methods=[method], openapi_extra=operation(path, body))
        if method == "GET":  # the server leaves out the body
            app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)

    add("POST", "/v1/chat/completions", generation.chat_completions, ChatCompletionRequest, on_failure)
    add("POST", "/v1/completions", generation.completions, CompletionRequest, on_failure)
    add("GET", "/v1/models", models.models)
    add("GET", "/v1/models/{model:path}", models.model)
    add("POST", "/tokenize", models.tokenize, TokenizeRequest)
    add("POST", "/detokenize", models.detokenize, DetokenizeRequest)
    for (method, path), handler in operations.items():
        add(method, path, handler)
    app.add_exception_handler(HTTPException, _http_error)
    return app


def _guarded(handler: Handler, report: Report) -> Handler:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody is left to read it
        except Exception as error:
            failure = from_exception(error)
            if failure.status >= 500 and not isinstance(error, ApiError):
                logger.exception("%s %s failed", request.method, request.url.path)
            report(error)
            return failure.response()

    endpoint.__name__ = handler.__name__
    endpoint.__doc__ = handler.__doc__
    return endpoint


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the official form (33b)."""
    if not isinstance(error, HTTPException):
        raise error
    message = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return ApiError(error.status_code, message).response(dict(error.headers or {}))

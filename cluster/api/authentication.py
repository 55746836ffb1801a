"""Whose request it is: keys, tenants and administrators, before anything of a request is read."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.api.errors import ApiError
from cluster.api.paths import TEXT_PATHS, is_admin_path, needs_no_key, path_of
from cluster.api.tenants import ApiKeys, Tenant


class Authentication:
    """ASGI middleware. Without keys everybody may do everything, but administration only where the cluster listens on
    loopback alone."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys | None,
        *,
        on_refusal: Callable[[BaseException], None],
        admin_open: bool = True,
    ):
        """on_refusal: told of each refused request for text. admin_open: whether administration needs no key where
        there are none."""
        self._app = app
        self._keys = keys
        self._on_refusal = on_refusal
        self._admin_open = admin_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = path_of(scope)
            try:
                scope.setdefault("state", {})["tenant"] = self._tenant(Request(scope), path)
            except ApiError as error:
                if path in TEXT_PATHS:
                    self._on_refusal(error)
                await error.response(_challenge(error))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _tenant(self, request: Request, path: str) -> Tenant | None:
        """None where the request needs no tenant. Raises ApiError 401 or 403."""
        for_admins = is_admin_path(path)
        if self._keys is None:
            if for_admins and not self._admin_open:
                raise _admin_only("Administration needs an admin key, and this cluster has none (api_keys_file).")
            return None
        if needs_no_key(path):
            return None
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        tenant, is_admin = self._keys.find(key.strip()) if scheme.lower() == "bearer" else (None, False)
        if for_admins and is_admin:
            return None
        if tenant is None:
            if is_admin:
                message = "An admin key has no tenant; use a tenant's key for this path."
                raise ApiError(403, message, code="tenant_key_required")
            raise ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
        if for_admins:
            raise _admin_only("This path needs an admin key.")
        return tenant


def tenant_of(request: Request) -> Tenant | None:
    """Whose request it is, once it is authenticated; None where the cluster has no keys."""
    tenant: Tenant | None = getattr(request.state, "tenant", None)
    return tenant


def _admin_only(message: str) -> ApiError:
    return ApiError(403, message, code="admin_key_required")


def _challenge(error: ApiError) -> dict[str, str]:
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}

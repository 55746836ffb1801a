"""Lets in who may come in: keys, tenants and their limits, before anything of a request is read."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.api.entrance import Entrance
from cluster.api.errors import ApiError
from cluster.api.paths import LIMITED_PATHS, TEXT_PATHS, is_admin_path, needs_no_key, path_of
from cluster.api.tenant_limits import TenantLimits
from cluster.api.tenants import ApiKeys, Tenant


class Gate:
    """ASGI middleware. Without keys everybody may do everything, but administration only where the cluster listens on
    loopback alone."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys | None,
        *,
        on_refusal: Callable[[BaseException], None],
        admin_open: bool = True,
        limits: TenantLimits | None = None,
        entrance: Entrance | None = None,
    ):
        """on_refusal: told of each request for text that was not let in. admin_open: whether administration needs no
        key where there are none. limits: those of this ingress. entrance: closed while the cluster stops."""
        self._app = app
        self._keys = keys
        self._on_refusal = on_refusal
        self._admin_open = admin_open
        self._limits = limits or TenantLimits()
        self._entrance = entrance or Entrance()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = path_of(scope)
        try:
            tenant = self._tenant(Request(scope), path)
            scope.setdefault("state", {})["tenant"] = tenant
            if path in LIMITED_PATHS:
                with self._entrance.admitted():
                    await self._answer(tenant, scope, receive, send)
                return
        except ApiError as error:
            if path in TEXT_PATHS:
                self._on_refusal(error)
            await error.response(_challenge(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _answer(self, tenant: Tenant | None, scope: Scope, receive: Receive, send: Send) -> None:
        if tenant is None:
            await self._app(scope, receive, send)
            return
        with self._limits.admitted(tenant) as leave:
            await self._app(scope, receive, _ending_with(send, leave))

    def _tenant(self, request: Request, path: str) -> Tenant | None:
        """Whose request it is; None where it needs no tenant. Raises ApiError 401 or 403."""
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
    """Whose request it is, once the gate has let it in; None where the cluster has no keys."""
    tenant: Tenant | None = getattr(request.state, "tenant", None)
    return tenant


def _ending_with(send: Send, leave: Callable[[], None]) -> Send:
    """The place is free before the answer's last byte is out, so that a client may send its next request at once."""

    async def ending(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            leave()
        await send(message)

    return ending


def _admin_only(message: str) -> ApiError:
    return ApiError(403, message, code="admin_key_required")


def _challenge(error: ApiError) -> dict[str, str]:
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}

"""What kind of path a request names, as all that stands before the handlers asks it."""

from starlette.types import Scope

TEXT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
LIMITED_PATHS = TEXT_PATHS | {"/v1/explain", "/tokenize", "/detokenize"}
"""What counts against a tenant's limits: all that costs more than its own few bytes."""
CORS_PREFIXES = ("/v1/", "/tokenize", "/detokenize")
"""What `--cors-origins` opens to the pages of other origins."""
_KEYLESS_PREFIXES = ("/health", "/metrics", "/docs", "/redoc", "/openapi.json")
"""Health and metrics are for machines of the operator; they name no prompt, key or tenant. The rest describes
the API."""
_ADMIN_PREFIXES = ("/admin", "/debug")


def path_of(scope: Scope) -> str:
    """The path as the application's routes see it, so without the prefix under which Serve deploys the application."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path[len(prefix) :] if prefix and path.startswith(prefix + "/") else path


def is_admin_path(path: str) -> bool:
    return path.startswith(_ADMIN_PREFIXES)


def needs_no_key(path: str) -> bool:
    return path.startswith(_KEYLESS_PREFIXES)


def is_open_to_other_sites(path: str) -> bool:
    """Health alone: it tells nothing, and whatever watches it may know the machine by any name."""
    return path == "/health" or path.startswith("/health/")

"""Which requests belong together, as far as the client says so."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

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

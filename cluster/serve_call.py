"""Calls over a Serve handle that stand on their own."""

from contextvars import Context
from typing import Any


def serve_call(handle: Any, *args: Any, **kwargs: Any) -> Any:
    """`handle.remote(...)`, without the HTTP request that it is made for; whoever calls must cancel it himself.

    Ray gives all calls that are made within one HTTP request one id, and its router waits for replicas by that id: of
    two such calls at the same time (n > 1, a list of prompts, a scrape) it forgets the first, which then hangs.
    """
    return Context().run(handle.remote, *args, **kwargs)

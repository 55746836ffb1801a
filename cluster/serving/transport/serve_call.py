"""Calls over a Serve handle that stand on their own, and what their failures say of a replica."""

import asyncio
from contextvars import Context
from typing import Any

from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import ReplicaUnavailableError

from replica.errors import EngineDead

_REPLICA_GONE = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, ReplicaUnavailableError, EngineDead)


class CallCancelled(RuntimeError):
    """The replica ended a call, as it may when it dies: Ray tells that as if the caller had cancelled it."""


def serve_call(handle: Any, *args: Any, **kwargs: Any) -> Any:
    """`handle.remote(...)`, without the HTTP request that it is made for; whoever calls must cancel it himself.

    Ray gives all calls that are made within one HTTP request one id, and its router waits for replicas by that id: of
    two such calls at the same time (n > 1, a list of prompts, a scrape) it forgets the first, which then hangs.
    """
    return Context().run(handle.remote, *args, **kwargs)


async def answer_of(response: Any) -> Any:
    """What a call gives. Raises CallCancelled, or what the replica raised, in Ray's wrapping."""
    try:
        return await response
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallCancelled("the replica cancelled the call") from error


def cause_of(error: BaseException) -> BaseException:
    """What the replica raised, out of Ray's wrapping."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException) and error.cause is not error:
        error = error.cause
    return error


def is_replica_gone(error: BaseException) -> bool:
    """The replica died, or cannot be reached, or its engine is dead; another one may still serve the request."""
    return isinstance(error, _REPLICA_GONE)

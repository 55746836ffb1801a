"""What an ingress asks of the others: all ingresses at once, itself included, or one replica."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve

from cluster.serving.transport.serve_call import answer_of, serve_call
from router.running_set import RUNNING_SET

Broadcast = Callable[[str, tuple[Any, ...], float], Awaitable[list[Any]]]
"""(method of the ingress, its arguments, timeout in seconds) -> what each ingress answered, an exception among them."""


class Siblings:
    """All ingresses of the application that this process belongs to."""

    def __init__(self) -> None:
        self._handle: Any = None

    async def ask(self, method: str, arguments: tuple[Any, ...], timeout_seconds: float) -> list[Any]:
        """What all ingresses answer, this one included; an exception stands for one that did not."""
        if self._handle is None:  # only now: Ray knows no handle of a deployment that is being built
            context = serve.get_replica_context()
            self._handle = serve.get_deployment_handle(context.deployment, context.app_name)
        response = self._handle.broadcast(method, *arguments)
        return await response.results_async(timeout_s=timeout_seconds, return_exceptions=True)

    async def pages(self, timeout_seconds: float) -> list[Any]:
        """Their own pages of metrics."""
        return await self.ask("local_metrics", (), timeout_seconds)


def running_replicas() -> frozenset[str]:
    """Replicas that Ray runs now; the adapter in this process writes it."""
    return RUNNING_SET.replicas


async def ask_replica(method: Any, replica_id: str, *arguments: Any, timeout_seconds: float) -> Any:
    """What one replica answers in time; a call that failed is cancelled there.

    method: a Serve handle with its method's name. Raises TimeoutError, or what the call raised.
    """
    response = None
    try:
        async with asyncio.timeout(timeout_seconds):
            response = serve_call(method, *arguments, route_to=replica_id)
            return await answer_of(response)
    except BaseException:
        if response is not None:
            response.cancel()
        raise

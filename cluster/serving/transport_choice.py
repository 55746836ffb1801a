"""The transport that the settings ask for."""

import asyncio
from typing import Any

from cluster.serving.channels.pool import ChannelPool, PoolListeners
from cluster.serving.ingress_metrics import IngressMetrics
from cluster.serving.transports import HandleTransport, SideChannelTransport, Transport
from router.prefix_router import PrefixRouter
from router.running_set import RUNNING_SET


def make_transport(
    name: str, replica_handle: Any, secret: bytes, router: PrefixRouter, metrics: IngressMetrics
) -> Transport:
    """name: one of TRANSPORTS. secret: the cluster's. Called in the event loop that will serve the requests."""
    handle = HandleTransport(replica_handle, metrics.count_transport)
    if name == "handle":
        return handle
    listeners = PoolListeners(on_failure=metrics.count_channel_failure, on_gone=router.replica_failed)
    channels = ChannelPool(replica_handle, secret, listeners)
    loop = asyncio.get_running_loop()

    def on_replicas(replica_ids: frozenset[str]) -> None:  # in the thread of Ray's router
        loop.call_soon_threadsafe(channels.follow, replica_ids)

    RUNNING_SET.subscribe(on_replicas)
    loop.call_soon(channels.follow, RUNNING_SET.replicas)
    return SideChannelTransport(channels, handle if name == "auto" else None, metrics.count_transport)

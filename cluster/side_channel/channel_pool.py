"""The side channels of one ingress, one for each replica."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cluster.serve_call import serve_call
from cluster.side_channel.ingress_channel import IngressChannel
from replica.messages import ChannelAddress
from replica.side_channel.handshake import IngressHandshake

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """open_seconds: for the replica's address, the connection and the handshake together. retry_seconds: so long no
    other try is made after one that failed."""

    open_seconds: float = 5.0
    retry_seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in ("open_seconds", "retry_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


class ChannelPool:
    """Opens a channel when a replica is first asked for, and again some time after it failed. Used in one event loop.

    on_failure is told why a channel could not be opened or was lost: address, connect, handshake, lost.
    """

    def __init__(
        self,
        replica_handle: Any,
        secret: bytes,
        on_failure: Callable[[str], None],
        settings: PoolSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """replica_handle: Serve handle of the replicas. secret: the cluster's."""
        self._address_of = replica_handle.options(method_name="channel_address")
        self._secret = secret
        self._on_failure = on_failure
        self._settings = settings or PoolSettings()
        self._clock = clock
        self._open: dict[str, IngressChannel] = {}
        self._opening: dict[str, asyncio.Task[IngressChannel | None]] = {}
        self._failed_at: dict[str, float] = {}

    def channel(self, replica_id: str) -> IngressChannel | None:
        """The open channel to this replica; where there is none, one is opened for those who ask later."""
        channel = self._open.get(replica_id)
        if channel is not None and channel.is_open:
            return channel
        failed_at = self._failed_at.get(replica_id)
        if failed_at is None or self._clock() - failed_at >= self._settings.retry_seconds:
            self._start_opening(replica_id)
        return None

    async def opened(self, replica_id: str) -> IngressChannel | None:
        """Waits for a channel that is being opened; None where it cannot be opened now."""
        channel = self.channel(replica_id)
        task = self._opening.get(replica_id)
        return await asyncio.shield(task) if channel is None and task is not None else channel

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        for channel in self._open.values():
            channel.close()

    def _start_opening(self, replica_id: str) -> None:
        if replica_id not in self._opening:
            task = self._opening[replica_id] = asyncio.create_task(self._open_channel(replica_id))
            task.add_done_callback(lambda _: self._opening.pop(replica_id, None))

    async def _open_channel(self, replica_id: str) -> IngressChannel | None:
        step, channel = "address", None
        try:
            async with asyncio.timeout(self._settings.open_seconds):
                address: ChannelAddress = await serve_call(self._address_of, route_to=replica_id)
                if address.replica_id != replica_id:  # Ray sends calls for a replica that is gone to another one
                    return None
                step = "connect"
                channel = await self._connect(address)
                step = "handshake"
                await channel.opened
        except Exception as error:
            if channel is not None:
                channel.close()
            logger.warning("no side channel to replica %s (%s): %r", replica_id, step, error)
            self._failed_at[replica_id] = self._clock()
            self._on_failure(step)
            return None
        self._failed_at.pop(replica_id, None)
        self._open[replica_id] = channel
        return channel

    async def _connect(self, address: ChannelAddress) -> IngressChannel:
        handshake = IngressHandshake(self._secret, address.replica_id)

        def on_lost(channel: IngressChannel) -> None:
            if self._open.get(address.replica_id) is channel:
                del self._open[address.replica_id]
            self._on_failure("lost")
            logger.warning("lost the side channel to replica %s", address.replica_id)

        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: IngressChannel(handshake, on_lost), address.host, address.port
        )
        return channel

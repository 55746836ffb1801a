"""The side channels of one ingress, one for each replica."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from cluster.serving.transport.ingress_channel import IngressChannel
from cluster.serving.transport.serve_call import answer_of, cause_of, is_replica_gone, serve_call
from replica.channel.handshake import SIDE_CHANNEL, ConnectingHandshake
from replica.messages import ChannelAddress

logger = logging.getLogger(__name__)

_LAST_WORDS_SECONDS = 1.0
"""So long what a replica sent before it died may still be on its way."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolListeners:
    """on_failure: told why a channel could not be opened or was lost: address, connect, handshake, hold, lost.

    on_gone: told the id of a replica that Ray knows to be dead.
    """

    on_failure: Callable[[str], None]
    on_gone: Callable[[str], None]


class ChannelPool:
    """Opens a channel when a replica is first asked for, and again some time after it failed. Used in one event loop.

    Each channel is held by one Serve call for as long as it is open: Ray counts it, so that a replica that is to stop
    waits for what runs on the channel, and its end tells of the replica's death where no TCP does.
    """

    def __init__(
        self,
        replica_handle: Any,
        secret: bytes,
        listeners: PoolListeners,
        settings: PoolSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """replica_handle: Serve handle of the replicas. secret: the cluster's."""
        self._address_of = replica_handle.options(method_name="channel_address")
        self._hold = replica_handle.options(method_name="hold_channel")
        self._secret = secret
        self._listeners = listeners
        self._settings = settings or PoolSettings()
        self._clock = clock
        self._channels: dict[str, IngressChannel] = {}
        self._opening: dict[str, asyncio.Task[IngressChannel | None]] = {}
        self._holding: set[asyncio.Task[None]] = set()
        self._failed_at: dict[str, float] = {}

    def channel(self, replica_id: str) -> IngressChannel | None:
        """The channel to this replica; where there is none, one is opened for those who ask later."""
        channel = self._channels.get(replica_id)
        if channel is not None and channel.is_usable:
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

    def follow(self, replica_ids: Collection[str]) -> None:
        """These are the replicas that Ray runs now. Channels to others end with their last answer, for a replica that
        Ray stops waits for that; to new ones a channel is opened before anybody needs it."""
        for replica_id in self._channels.keys() - set(replica_ids):
            self._channels.pop(replica_id).retire()
        for replica_id in self._failed_at.keys() - set(replica_ids):
            del self._failed_at[replica_id]
        for replica_id in replica_ids:
            self.channel(replica_id)

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        for channel in self._channels.values():
            channel.close()

    def _start_opening(self, replica_id: str) -> None:
        if replica_id not in self._opening:
            task = self._opening[replica_id] = asyncio.create_task(self._open(replica_id))
            task.add_done_callback(lambda _: self._opening.pop(replica_id, None))

    async def _open(self, replica_id: str) -> IngressChannel | None:
        step, channel = "address", None
        try:
            async with asyncio.timeout(self._settings.open_seconds):
                address: ChannelAddress = await answer_of(serve_call(self._address_of, route_to=replica_id))
                if address.replica_id != replica_id:  # Ray sends calls for a replica that is gone to another one
                    return None
                step = "connect"
                channel = await self._connect(address)
                step = "handshake"
                await channel.proven
                step = "hold"
                self._start_holding(channel, replica_id)
                await channel.held
        except Exception as error:
            if channel is not None:
                channel.close()
            logger.warning("no side channel to replica %s (%s): %r", replica_id, step, error)
            self._failed_at[replica_id] = self._clock()
            self._listeners.on_failure(step)
            self._report_if_gone(replica_id, error)
            return None
        self._failed_at.pop(replica_id, None)
        self._channels[replica_id] = channel
        return channel

    async def _connect(self, address: ChannelAddress) -> IngressChannel:
        def on_lost(channel: IngressChannel) -> None:
            logger.warning("lost the side channel to replica %s", address.replica_id)
            if self._channels.get(address.replica_id) is channel:
                del self._channels[address.replica_id]
            self._listeners.on_failure("lost")

        handshake = ConnectingHandshake(self._secret, address.replica_id, SIDE_CHANNEL)
        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: IngressChannel(handshake, on_lost), address.host, address.port
        )
        return channel

    def _start_holding(self, channel: IngressChannel, replica_id: str) -> None:
        task = asyncio.create_task(self._hold_until_closed(channel, replica_id))
        self._holding.add(task)
        task.add_done_callback(self._holding.discard)

    async def _hold_until_closed(self, channel: IngressChannel, replica_id: str) -> None:
        try:
            await answer_of(serve_call(self._hold, channel.channel_id, route_to=replica_id))
        except Exception as error:
            logger.warning("the side channel to replica %s is not held any more: %r", replica_id, error)
            self._report_if_gone(replica_id, error)
        finally:
            # The end of the connection tells the same, after everything that was sent before it; but not where the
            # replica's whole machine is gone.
            await asyncio.wait([channel.closed], timeout=_LAST_WORDS_SECONDS)
            channel.close()

    def _report_if_gone(self, replica_id: str, error: BaseException) -> None:
        if is_replica_gone(cause_of(error)):
            self._listeners.on_gone(replica_id)

"""One request's answer over a side channel."""

import asyncio
from collections.abc import Callable
from typing import Any

from cluster.relay_failures import cause_of
from cluster.side_channel.ingress_channel import ChannelLost, IngressChannel
from replica.errors import ChannelClosed
from replica.messages import TokenChunk


class ChannelAnswer:
    """Reads like the response of a Serve stream: tokens come over the channel, refusals and death by the Serve call.

    The call lasts as long as the request: Ray counts it, tells of the replica's death by it, and cancels by it.
    """

    def __init__(self, channel: IngressChannel, call: Any, request_id: str, on_error: Callable[[BaseException], None]):
        """call: the Serve response of the replica's `send`. on_error: told what the call raised, also when nobody reads
        any more."""
        self._channel = channel
        self._call = call
        self._request_id = request_id
        self._on_error = on_error
        self._inbox = channel.follow(request_id)
        self._cancelled = False
        self._watch = asyncio.create_task(self._watch_call())

    def __aiter__(self) -> "ChannelAnswer":
        return self

    async def __anext__(self) -> list[TokenChunk]:
        chunks = await self._inbox.next()
        if chunks and chunks[-1].finish_reason is not None:
            self._channel.leave(self._request_id)
        return chunks

    def cancel(self) -> None:
        """Aborts the request in the replica; nothing more is read."""
        self._cancelled = True
        self._channel.leave(self._request_id)
        self._call.cancel()

    async def _watch_call(self) -> None:
        try:
            await self._call  # its return says nothing: the end of the answer may still be on its way
        except BaseException as error:
            self._channel.leave(self._request_id)
            cause = cause_of(error)
            self._inbox.end(_refused() if isinstance(cause, ChannelClosed) else error)
            if not self._cancelled:
                self._on_error(cause)


def _refused() -> ChannelLost:
    return ChannelLost("The replica closed the connection that this answer was to take.")

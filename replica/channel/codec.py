"""What goes over a side channel, as bytes: msgpack, read back only as the types that stand here."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from replica.channel.frames import packed, unpacked
from replica.errors import EngineDead, EngineOverloaded, RequestRefused
from replica.messages import GenerateRequest, TokenChunk


class Start(msgspec.Struct, frozen=True, tag="start"):
    """From the ingress: answer this."""

    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """From the ingress: nobody waits for this any more; unknown and ended ones are no error."""

    request_id: str


class Held(msgspec.Struct, frozen=True, tag="held"):
    """From the replica, once: Ray counts this channel, requests may come."""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """From the replica. No chunks: it has taken the request, however long that may then queue."""

    request_id: str
    chunks: list[TokenChunk]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From the replica: the request ended without a last chunk. kind: a key of _ERRORS."""

    request_id: str
    kind: str
    message: str = ""
    param: str = ""
    code: str | None = None

    @classmethod
    def by(cls, request_id: str, error: BaseException) -> "Failed":
        match error:
            case RequestRefused():
                return cls(request_id, "refused", error.message, error.param, error.code)
            case EngineOverloaded():
                return cls(request_id, "overloaded", str(error))
            case EngineDead():
                return cls(request_id, "dead", str(error))
            case StopAsyncIteration():
                return cls(request_id, "ended")
            case asyncio.CancelledError():
                return cls(request_id, "cancelled")
            case _:
                return cls(request_id, "fault", f"{type(error).__name__}: {error}")

    @property
    def error(self) -> BaseException:
        """What a Serve stream would have raised; of a fault only its text comes across."""
        return _ERRORS.get(self.kind, _ERRORS["fault"])(self)


_ERRORS: dict[str, Callable[[Failed], BaseException]] = {
    "refused": lambda failed: RequestRefused(failed.message, param=failed.param, code=failed.code),
    "overloaded": lambda failed: EngineOverloaded(failed.message),
    "dead": lambda failed: EngineDead(failed.message),
    "ended": lambda failed: StopAsyncIteration(),
    "cancelled": lambda failed: asyncio.CancelledError(),
    "fault": lambda failed: RuntimeError(f"the replica failed: {failed.message}"),
}

FromIngress = Start | Cancel
FromReplica = Held | Answered | Failed

_from_ingress = msgspec.msgpack.Decoder(FromIngress)
_from_replica = msgspec.msgpack.Decoder(list[FromReplica])


def encode(message: FromIngress | Sequence[FromReplica]) -> bytes:
    """One whole frame; a replica's holds all that several requests got at once."""
    return packed(message)


def from_ingress(payload: bytes) -> FromIngress:
    """Raises BadFrame for anything that an ingress does not write."""
    return unpacked(_from_ingress, payload)


def from_replica(payload: bytes) -> list[FromReplica]:
    """Raises BadFrame for anything that a replica does not write."""
    return unpacked(_from_replica, payload)

"""What the API needs from the machinery behind it; `cluster.serving.relay` is the real one."""

from collections.abc import AsyncGenerator
from typing import Protocol

from replica.messages import GenerateRequest, TokenChunk


class RouteSummary(Protocol):
    """What a client may see of a routing decision."""

    @property
    def replica_id(self) -> str: ...
    @property
    def predicted_hit_tokens(self) -> int: ...
    @property
    def outcome(self) -> str: ...


class EngineCall(Protocol):
    """One prompt on its way through one engine. Used once, either streamed or collected.

    Raises RelayError, `replica.errors.RequestRefused` or `EngineOverloaded`. Cancelling the caller aborts the work.
    """

    @property
    def decision(self) -> RouteSummary | None:
        """Where it went; None until the router was asked."""

    def stream(self) -> AsyncGenerator[list[TokenChunk], None]:
        """Chunks as they come; each item holds what had piled up. Retried elsewhere only before the first item."""

    async def collect(self) -> list[TokenChunk]:
        """All chunks at the end; retried elsewhere until then, because the client has seen nothing."""


class OpenCall(Protocol):
    def __call__(self, request: GenerateRequest) -> EngineCall: ...


class RelayError(Exception):
    """A request failed on its way. retry_after_seconds: when trying again makes sense."""

    retry_after_seconds: float | None = None

    def __init__(self, message: str, retry_after_seconds: float | None = None):
        super().__init__(message)
        self.message, self.retry_after_seconds = message, retry_after_seconds


class ReplicaLost(RelayError):
    """The replica died or became unreachable while it held the request."""


class NoReplicaAvailable(RelayError):
    """No replica took the request in time."""


class RequestTimedOut(RelayError):
    """The request's deadline passed."""

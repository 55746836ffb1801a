"""Which HTTP error each failure behind the API becomes."""

from cluster.api.engine_call import NoReplicaAvailable, RelayError, ReplicaLost, RequestTimedOut
from cluster.api.errors import SERVER_ERROR, ApiError, bad_request
from replica.errors import EngineOverloaded, RequestRefused
from replica.messages import FinishReason, TokenChunk

RETRY_AFTER_SECONDS = 1.0


class EngineFailure(ApiError):
    """An engine ended a request without an answer, and has counted it."""


def from_exception(error: BaseException) -> ApiError:
    """Never raises; what is not known is a 500 without the internals in its message."""
    retry_after = getattr(error, "retry_after_seconds", None) or RETRY_AFTER_SECONDS
    match error:
        case ApiError():
            return error
        case RequestRefused():
            return bad_request(error.message, error.param, error.code)
        case EngineOverloaded():
            return _overloaded("Every replica has as much waiting work as it accepts; try again later.", retry_after)
        case NoReplicaAvailable():
            return ApiError(
                503, error.message, type=SERVER_ERROR, code="no_replica_available", retry_after_seconds=retry_after
            )
        case ReplicaLost():
            return ApiError(503, error.message, type=SERVER_ERROR, code="replica_lost", retry_after_seconds=retry_after)
        case RequestTimedOut():
            return _timed_out(error.message)
        case RelayError():
            return ApiError(500, error.message, type=SERVER_ERROR, code="internal_error")
        case _:
            message = "The server failed while it handled this request."
            return ApiError(500, message, type=SERVER_ERROR, code="internal_error")


def from_chunk(chunk: TokenChunk) -> ApiError | None:
    """The EngineFailure that a last chunk stands for; None for an answer that ended as it should."""
    match chunk.finish_reason:
        case None | FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.TIMEOUT:
            return _timed_out(chunk.error or "The request's deadline passed.", EngineFailure)
        case FinishReason.REJECTED:
            return _overloaded(chunk.error or "The replica refused the request.", RETRY_AFTER_SECONDS, EngineFailure)
        case FinishReason.ABORT:
            message = chunk.error or "The request was aborted."
            return EngineFailure(503, message, type=SERVER_ERROR, code="aborted")
        case _:
            message = chunk.error or "The engine failed while it computed this request."
            return EngineFailure(500, message, type=SERVER_ERROR, code="engine_error")


def _overloaded(message: str, retry_after: float, kind: type[ApiError] = ApiError) -> ApiError:
    return kind(429, message, type="rate_limit_error", code="engine_overloaded", retry_after_seconds=retry_after)


def _timed_out(message: str, kind: type[ApiError] = ApiError) -> ApiError:
    return kind(408, message, type="timeout_error", code="deadline_exceeded")

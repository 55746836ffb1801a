"""Refusals of an engine. Each names the field and the bound, and maps to one HTTP status at the ingress."""


class RequestRefused(ValueError):
    """The request can never be served here (HTTP 400). `code` is the OpenAI error code, `param` the field."""

    def __init__(self, message: str, *, param: str, code: str | None = None):
        super().__init__(message)
        self.message, self.param, self.code = message, param, code

    def __reduce__(self) -> tuple:  # exceptions with keyword arguments do not pickle by themselves
        return _refused, (self.message, self.param, self.code)


def _refused(message: str, param: str, code: str | None) -> RequestRefused:
    return RequestRefused(message, param=param, code=code)


class EngineOverloaded(RuntimeError):
    """The bound on waiting requests or queued tokens is reached; try another replica, then HTTP 429."""


class EngineDead(RuntimeError):
    """The engine's loop has died; the replica's health check fails and it will be replaced."""


class ChannelClosed(RuntimeError):
    """There is no such side channel; nothing is wrong with the replica."""


class UnsupportedModel(ValueError):
    """The model cannot be served right; the message says what stands in the way. Raised at load."""


class PoolTooSmall(ValueError):
    """Memory or the given size does not hold one request; the message has the numbers."""

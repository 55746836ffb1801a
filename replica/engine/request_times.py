"""When things happened to one request."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestTimes:
    """Seconds on the engine's clock. arrived: at the ingress. queued: at this engine. last_token: None before it."""

    arrived: float
    queued: float
    last_token: float | None = None

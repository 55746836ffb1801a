"""Bounds of what the API takes in."""

from dataclasses import dataclass

KEEP_ALIVE_SECONDS = 90
"""How long an idle connection lasts: longer than the pools of common clients and than HAProxy keep one (56)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """max_body_bytes: larger bodies are refused with 413 (57).

    max_choices: prompts times n of one request.
    request_timeout_seconds: from arrival at the ingress to the last token, waiting included; a client may ask for less
    by the header `x-request-timeout-seconds`. This is the one meaning of a deadline: who is late in the queue is never
    computed, who is late while computing ends, both with 408, or with an error event once a stream has begun (53).
    """

    max_body_bytes: int = 8 * 2**20
    max_choices: int = 512
    request_timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name, low, high in (("max_body_bytes", 1024, 2**31), ("max_choices", 1, 65536)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, got {value}")
        if not 0 < self.request_timeout_seconds <= 86400:
            raise ValueError(
                f"request_timeout_seconds must be above 0 and at most 86400, got {self.request_timeout_seconds}"
            )

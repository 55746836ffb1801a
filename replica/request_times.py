"""When things happened to one request, on the clock of the ingress."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestTimes:
    """Seconds since the epoch; None where it did not happen.

    arrived: at the ingress. admitted: first given pages. gaps: seconds between tokens, first token excluded.
    """

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    gaps: list[float] = field(default_factory=list)

    def token(self, now: float) -> None:
        if self.last_token is None:
            self.first_token = now
        else:
            self.gaps.append(now - self.last_token)
        self.last_token = now

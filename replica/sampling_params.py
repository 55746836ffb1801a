"""How the next token is drawn, and when a request ends."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked by itself, so that a bad value never reaches the engine's loop (18, A39).

    max_tokens: upper bound of generated tokens, at least 1; `None` means up to the model's window.
    temperature: 0 or below 1e-4 is greedy. top_k: 0 is off. stop: strings that end the text before themselves.
    seed: the request's random stream depends on it alone; `None` draws one per request.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not (math.isfinite(self.temperature) and 0.0 <= self.temperature <= 2.0):
            raise ValueError(f"temperature must be between 0 and 2, got {self.temperature}")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.top_k < 2**31:
            raise ValueError(f"top_k must be between 0 (off) and 2147483647, got {self.top_k}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must be a 64-bit integer, got {self.seed}")
        if any(not text for text in self.stop):
            raise ValueError("stop must not hold an empty string")
        if len(self.stop) > 16:
            raise ValueError(f"stop must hold at most 16 strings, got {len(self.stop)}")

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-4

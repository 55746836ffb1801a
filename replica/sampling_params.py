"""How the next token is drawn, and when a request ends."""

import math
from dataclasses import dataclass

MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MIN_REPETITION_PENALTY = 0.01
"""Logits are divided by it: by much less they would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked by itself, so that a bad value never reaches the engine's loop (18, A39).

    max_tokens: upper bound of generated tokens; `None` means up to the model's window, 0 computes the prompt alone.
    temperature: 0 or below 1e-4 is greedy. top_k: 0 is off. min_p: least probability, as a share of the likeliest
    token's, 0 is off. stop: strings that end the text before themselves.
    seed: the request's random stream depends on it alone; `None` draws one per request.
    presence_penalty, frequency_penalty: taken off the logits of generated tokens, once and per occurrence; 0 is off.
    repetition_penalty: logits of tokens in prompt or answer are divided by it where positive and multiplied where
    negative; 1 is off. logit_bias: (token id, what is added to its logit).
    min_tokens: so many tokens come before any that ends the answer; stop strings are looked for only behind them.
    top_logprobs: how many of the likeliest tokens are told with each generated one; `None` tells no logprobs at all.
    prompt_logprobs: the prompt's tokens get theirs too (needs top_logprobs); the cache is not read then (C43).
    grammar: what the answer must match, in llguidance's format; `None` is free text.
    shown_token_ids: special tokens that are part of the answer's text, as marks of tool calls are; others never are.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    grammar: str | None = None
    shown_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens must be at least 0, got {self.max_tokens}")
        for name, low, high in (
            ("temperature", 0.0, 2.0), ("min_p", 0.0, 1.0), ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0), ("repetition_penalty", MIN_REPETITION_PENALTY, 10.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise ValueError(f"{name} must be between {low:g} and {high:g}, got {value}")
        if not (math.isfinite(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.top_k < 2**31:
            raise ValueError(f"top_k must be between 0 (off) and 2147483647, got {self.top_k}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed must be a 64-bit integer, got {self.seed}")
        self._check_lists()
        self._check_counts()

    def _check_lists(self) -> None:
        if any(not text for text in self.stop):
            raise ValueError("stop must not hold an empty string")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise ValueError(f"stop must hold at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}")
        for token_id, bias in self.logit_bias:
            if not (math.isfinite(bias) and -100 <= bias <= 100):
                raise ValueError(f"logit_bias must be between -100 and 100, got {bias} for token {token_id}")

    def _check_counts(self) -> None:
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise ValueError(f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ValueError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {self.top_logprobs}")
        if self.prompt_logprobs and self.top_logprobs is None:
            raise ValueError("prompt_logprobs must be off where top_logprobs is None, got True")

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-4

    @property
    def penalises(self) -> bool:
        """Whether a token's logit depends on which tokens came before."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

"""Keeps each answer within its grammar: what may come next is a mask over the vocabulary."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from replica.request import Request

_NEVER = float("-inf")


class GrammarMasks:
    """One matcher per running request that has a grammar. It has read what was generated, so a preemption changes
    nothing: the tokens stay."""

    def __init__(self) -> None:
        self._matchers: dict[str, Any] = {}

    @property
    def is_empty(self) -> bool:
        return not self._matchers

    def begin(self, request_id: str, matcher: Any) -> None:
        """matcher: a fresh `llguidance.LLMatcher`."""
        self._matchers[request_id] = matcher

    def apply(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """logits: [requests, vocabulary]; a changed copy where any of the requests has a grammar, else the same."""
        rows = [row for row, request in enumerate(requests) if request.id in self._matchers]
        if not rows:
            return logits
        logits = logits.clone()
        for row in rows:
            bits = np.frombuffer(self._matchers[requests[row].id].compute_bitmask(), dtype=np.uint8)
            allowed = np.unpackbits(bits, count=logits.shape[-1], bitorder="little").astype(bool)
            logits[row].masked_fill_(torch.from_numpy(~allowed).to(logits.device), _NEVER)
        return logits

    def accept(self, request_id: str, token_id: int) -> bool:
        """Reads a request's next token; True where the answer is complete and nothing may follow."""
        matcher = self._matchers.get(request_id)
        if matcher is None:
            return False
        matcher.consume_token(token_id)
        return bool(matcher.is_stopped())

    def forget(self, request_id: str) -> None:
        self._matchers.pop(request_id, None)

"""Which tokens a request has had, for the penalties on repeating them."""

import torch

from replica.engine.request import Request


class TokenCounts:
    """Made for requests with penalties alone. Follows `request.token_ids`, which outlives a preemption.

    generated: how often each token of the vocabulary was generated. seen: which ones stand in prompt or answer.
    """

    def __init__(self, request: Request, vocab_size: int, device: torch.device):
        self.generated = torch.zeros(vocab_size, device=device)
        self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.seen[torch.tensor(request.token_ids[: request.num_prompt_tokens], device=device)] = True
        self._num_read = request.num_prompt_tokens

    def catch_up(self, request: Request) -> None:
        """Counts the tokens that were generated since the last time."""
        for token_id in request.token_ids[self._num_read :]:
            self.generated[token_id] += 1
            self.seen[token_id] = True
        self._num_read = request.num_tokens

"""What requests want changed in their logits before a token is chosen: penalties, biases and forbidden tokens."""

from collections.abc import Collection, Sequence

import torch

from replica.request import Request

_NEVER = float("-inf")


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


class LogitEdits:
    """Keeps state only of requests that have penalties, and costs nothing where no request of a step wants an edit."""

    def __init__(self, eos_token_ids: Collection[int] = ()):
        self._eos_token_ids = tuple(eos_token_ids)
        self._counts: dict[str, TokenCounts] = {}

    @property
    def is_empty(self) -> bool:
        return not self._counts

    def apply(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        """logits: [requests, vocabulary]; a float32 copy is changed and returned where there is something to do.

        Order: repetition penalty, frequency and presence penalty, bias, and last the tokens that must not come yet.
        """
        penalised = [row for row, request in enumerate(requests) if request.sampling.penalises]
        biased = [row for row, request in enumerate(requests) if request.sampling.logit_bias]
        too_short = [
            row for row, request in enumerate(requests) if request.num_generated_tokens < request.sampling.min_tokens
        ]
        if not (penalised or biased or too_short):
            return logits
        logits = logits.float().clone()
        if penalised:
            self._penalise(logits, penalised, [requests[row] for row in penalised])
        for row in biased:
            token_ids, biases = zip(*requests[row].sampling.logit_bias, strict=True)
            logits[row, list(token_ids)] += torch.tensor(biases, device=logits.device)
        for row in too_short:
            logits[row, list({*self._eos_token_ids, *requests[row].sampling.stop_token_ids})] = _NEVER
        return logits

    def forget(self, request_id: str) -> None:
        self._counts.pop(request_id, None)

    def _penalise(self, logits: torch.Tensor, rows: Sequence[int], requests: Sequence[Request]) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=logits.device).unsqueeze(1)

        counts = [self._counts_of(request, logits) for request in requests]
        generated = torch.stack([count.generated for count in counts])
        chosen = logits[rows]
        repetition = [request.sampling.repetition_penalty for request in requests]
        if any(penalty != 1.0 for penalty in repetition):
            seen = torch.stack([count.seen for count in counts])
            factor = torch.where(seen, column(repetition), 1.0)
            chosen = torch.where(chosen > 0, chosen / factor, chosen * factor)
        chosen -= generated * column([request.sampling.frequency_penalty for request in requests])
        chosen -= (generated > 0) * column([request.sampling.presence_penalty for request in requests])
        logits[rows] = chosen

    def _counts_of(self, request: Request, logits: torch.Tensor) -> TokenCounts:
        counts = self._counts.get(request.id)
        if counts is None:
            counts = self._counts[request.id] = TokenCounts(request, logits.shape[-1], logits.device)
        counts.catch_up(request)
        return counts

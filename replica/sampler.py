"""Draws the next token of each request of a step."""

from collections.abc import Sequence

import torch

from replica.request import Request


class Sampler:
    """Greedy rows by argmax, the others by temperature, top-k and top-p over the whole batch at once.

    Each request has a generator of its own, so its stream of random numbers depends on its seed alone and not on its
    neighbours, and goes on where it was after a preemption.
    """

    def __init__(self) -> None:
        self._generators: dict[str, torch.Generator] = {}

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> list[int | None]:
        """logits: [num_requests, vocabulary]. Returns a token id per row; None where the logits are not finite (18).

        -inf is a token that must not come; a row of nothing else has no answer either.
        """
        tokens = logits.argmax(dim=-1)
        rows = [row for row, request in enumerate(requests) if not request.sampling.greedy]
        if rows:
            chosen = [requests[row] for row in rows]
            tokens[rows] = self._draw(logits[rows].float(), chosen).to(tokens.device)
        usable = logits.amax(dim=-1).isfinite().tolist()  # amax hands NaN on
        return [token if good else None for token, good in zip(tokens.tolist(), usable, strict=True)]

    def _draw(self, logits: torch.Tensor, requests: Sequence[Request]) -> torch.Tensor:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=logits.device).unsqueeze(1)

        # Below the largest logit nothing overflows, however low the temperature.
        logits = logits - logits.amax(dim=-1, keepdim=True)
        logits = logits / column([request.sampling.temperature for request in requests])
        logits = _keep_top_k(logits, [request.sampling.top_k for request in requests])
        probs = torch.softmax(logits, dim=-1)
        probs = _keep_top_p(probs, column([request.sampling.top_p for request in requests]))
        # argmax of p / Exp(1) draws from p: one noise row per request, from its own generator.
        noise = torch.stack([self._noise(request, logits.shape[-1]) for request in requests])
        return (probs / noise.to(probs.device)).argmax(dim=-1)

    def _noise(self, request: Request, size: int) -> torch.Tensor:
        generator = self._generators.get(request.id)
        if generator is None:
            generator = torch.Generator()
            if request.sampling.seed is None:
                generator.seed()
            else:
                generator.manual_seed(request.sampling.seed)
            self._generators[request.id] = generator
        return torch.empty(size).exponential_(generator=generator).clamp_min_(1e-30)

    def forget(self, request_id: str) -> None:
        self._generators.pop(request_id, None)


def _keep_top_k(logits: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    if not any(top_k):
        return logits
    vocabulary = logits.shape[-1]
    counts = torch.tensor([min(k, vocabulary) or vocabulary for k in top_k], device=logits.device)
    ordered = logits.topk(int(counts.max()), dim=-1).values
    threshold = ordered.gather(1, (counts - 1).unsqueeze(1))
    return logits.masked_fill(logits < threshold, float("-inf"))


def _keep_top_p(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keeps the smallest set of most likely tokens whose probabilities reach top_p (nucleus sampling)."""
    if bool((top_p >= 1).all()):
        return probs
    ordered, order = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    # 1 is everything, also where rounding lets the sum reach 1 early: a neighbour's top_p must not change that.
    kept = torch.where((before < top_p) | (top_p >= 1), ordered, torch.zeros_like(ordered))
    return torch.zeros_like(probs).scatter_(1, order, kept)

"""How likely the model held tokens to be: of its own distribution, before temperature, penalties, biases and masks."""

from collections.abc import Sequence

import torch

from replica.messages import TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot hold (13)."""


def logprobs_of(logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """logits: [rows, vocabulary], raw. One result per row: the given token's and the `num_top` likeliest tokens'."""
    if not token_ids:
        return []
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device).unsqueeze(1)).squeeze(1)
    top = _likeliest(logprobs, num_top)
    return [
        TokenLogprobs(token_id, logprob, top.get(row, ()))
        for row, (token_id, logprob) in enumerate(zip(token_ids, _clipped(chosen).tolist(), strict=True))
    ]


def _likeliest(logprobs: torch.Tensor, num_top: Sequence[int]) -> dict[int, tuple[tuple[int, float], ...]]:
    """Row -> its `num_top` likeliest (token id, logprob) pairs, of the rows that want any."""
    rows = [row for row, count in enumerate(num_top) if count]
    if not rows:
        return {}
    top = logprobs[rows].topk(min(max(num_top), logprobs.shape[-1]), dim=-1)
    found = zip(rows, top.indices.tolist(), _clipped(top.values).tolist(), strict=True)
    return {
        row: tuple(zip(indices[: num_top[row]], values[: num_top[row]], strict=True)) for row, indices, values in found
    }


def _clipped(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num(LEAST_LOGPROB, neginf=LEAST_LOGPROB).clamp_min(LEAST_LOGPROB)

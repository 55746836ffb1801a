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
    most = min(max(num_top), logprobs.shape[-1])
    top = logprobs.topk(most, dim=-1) if most else None
    values = _clipped(top.values).tolist() if top is not None else [[]] * len(token_ids)
    indices = top.indices.tolist() if top is not None else [[]] * len(token_ids)
    return [
        TokenLogprobs(token_id, logprob, tuple(zip(indices[row][:count], values[row][:count], strict=True)))
        for row, (token_id, logprob, count) in enumerate(
            zip(token_ids, _clipped(chosen).tolist(), num_top, strict=True)
        )
    ]


def _clipped(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num(LEAST_LOGPROB, neginf=LEAST_LOGPROB).clamp_min(LEAST_LOGPROB)

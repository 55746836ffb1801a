"""Which tokens may be drawn at all: top-k, top-p and min-p, each row of a batch by its own rule.

What a row keeps depends on that row alone, never on its neighbours.
"""

from collections.abc import Sequence

import numpy as np
import torch


def keep_top_k(logits: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """logits: [rows, vocabulary]. The k likeliest tokens of each row stay, with all that equal the last; 0 is off."""
    if not any(top_k):
        return logits
    vocabulary = logits.shape[-1]
    counts = torch.tensor([min(k, vocabulary) or vocabulary for k in top_k], device=logits.device)
    ordered = logits.topk(int(counts.max()), dim=-1).values
    threshold = ordered.gather(1, (counts - 1).unsqueeze(1))
    return logits.masked_fill(logits < threshold, float("-inf"))


def keep_min_p(probs: torch.Tensor, min_p: Sequence[float]) -> torch.Tensor:
    """probs: [rows, vocabulary]. Drops what is less likely than `min_p` times the likeliest token; 0 is off."""
    if not any(min_p):
        return probs
    threshold = torch.tensor(min_p, device=probs.device).unsqueeze(1) * probs.amax(dim=-1, keepdim=True)
    return probs.masked_fill(probs < threshold, 0.0)


def keep_top_p(probs: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """The smallest set of likeliest tokens whose share of each row's probability reaches top_p, with all that equal the
    last; 1 is off."""
    rows = [row for row, value in enumerate(top_p) if value < 1]
    if not rows:
        return probs
    chosen = probs[rows]
    ordered = _descending(chosen)
    sums = ordered.cumsum(dim=-1)
    wanted = torch.tensor([top_p[row] for row in rows], device=probs.device).unsqueeze(1) * sums[:, -1:]
    count = (sums - ordered < wanted).sum(dim=-1, keepdim=True).clamp_min(1)
    threshold = ordered.gather(1, count - 1)
    return probs.index_copy(0, torch.tensor(rows, device=probs.device), chosen.masked_fill(chosen < threshold, 0.0))


def _descending(values: torch.Tensor) -> torch.Tensor:
    """Each row from its largest value on. NumPy's sort of floats is many times faster than torch's on a CPU."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values

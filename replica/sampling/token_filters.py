"""Which tokens may be drawn at all: top-k, top-p and min-p, each row of a batch by its own rule.

What a row keeps depends on that row alone, never on its neighbours.
"""

from collections.abc import Sequence

import numpy as np
import torch


def keep_top_k(logits: torch.Tensor, top_k: Sequence[int]) -> torch.Tensor:
    """logits: [rows, vocabulary]. The k likeliest tokens of each row stay, with all that equal the last; 0 is off."""
    rows = [row for row, k in enumerate(top_k) if 0 < k < logits.shape[-1]]
    if not rows:
        return logits
    chosen = logits[rows]
    threshold = _kth_largest(chosen, [top_k[row] for row in rows])
    kept = chosen.masked_fill(chosen < threshold, float("-inf"))
    return logits.index_copy(0, torch.tensor(rows, device=logits.device), kept)


def keep_min_p(probs: torch.Tensor, min_p: Sequence[float]) -> torch.Tensor:
    """probs: [rows, vocabulary]. Drops what is less likely than `min_p` times the likeliest token; 0 is off."""
    rows = [row for row, value in enumerate(min_p) if value]
    if not rows:
        return probs
    chosen = probs[rows]
    factor = torch.tensor([min_p[row] for row in rows], device=probs.device).unsqueeze(1)
    kept = chosen.masked_fill(chosen < factor * chosen.amax(dim=-1, keepdim=True), 0.0)
    return probs.index_copy(0, torch.tensor(rows, device=probs.device), kept)


def keep_top_p(probs: torch.Tensor, top_p: Sequence[float]) -> torch.Tensor:
    """The smallest set of likeliest tokens whose share of each row's probability reaches top_p, with all that equal the
    last; 1 is off."""
    rows = [row for row, value in enumerate(top_p) if value < 1]
    if not rows:
        return probs
    chosen = probs[rows]
    ordered = _descending(chosen)
    sums = ordered.cumsum(dim=-1)
    mass = torch.tensor([top_p[row] for row in rows], device=probs.device).unsqueeze(1) * sums[:, -1:]
    count = (sums - ordered < mass).sum(dim=-1, keepdim=True).clamp_min(1)
    threshold = ordered.gather(1, count - 1)
    return probs.index_copy(0, torch.tensor(rows, device=probs.device), chosen.masked_fill(chosen < threshold, 0.0))


def _kth_largest(values: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """values: [rows, vocabulary]. Per row its counts[row]-th largest, [rows, 1].

    A selection and not a sort, and rows of very different counts are not selected together: the largest of them would
    set what all cost.
    """
    if values.device.type == "cpu":
        pairs = zip(values.numpy(), counts, strict=True)
        return torch.tensor([[np.partition(numbers, -count)[-count]] for numbers, count in pairs])
    result = values.new_empty(len(counts), 1)
    by_size: dict[int, list[int]] = {}
    for row, count in enumerate(counts):
        by_size.setdefault(count.bit_length(), []).append(row)
    for rows in by_size.values():
        num_kept = torch.tensor([counts[row] for row in rows], device=values.device)
        largest = values[rows].topk(max(counts[row] for row in rows), dim=-1).values
        result[rows] = largest.gather(1, (num_kept - 1).unsqueeze(1))
    return result


def _descending(values: torch.Tensor) -> torch.Tensor:
    """Each row from its largest value on. NumPy's sort of floats is many times faster than torch's on a CPU."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values

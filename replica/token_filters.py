"""Which tokens may be drawn at all: top-k, top-p and min-p, each row of a batch by its own rule.

What a row keeps depends on that row alone, never on its neighbours.
"""

from collections.abc import Sequence

import torch

_TOP_P_CANDIDATES = 1024
"""So many of the likeliest tokens nearly always reach top_p; sorting a whole vocabulary costs ten times as much."""


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
    """The smallest set of likeliest tokens whose share of each row's probability reaches top_p; 1 is off."""
    rows = [row for row, value in enumerate(top_p) if value < 1]
    if not rows:
        return probs
    chosen = probs[rows] if len(rows) < len(top_p) else probs
    wanted = torch.tensor([top_p[row] for row in rows], device=probs.device).unsqueeze(1)
    wanted = wanted * chosen.sum(dim=-1, keepdim=True)
    kept = torch.zeros_like(chosen)
    ordered, order = chosen.topk(min(_TOP_P_CANDIDATES, chosen.shape[-1]), dim=-1)
    reached = ordered.sum(dim=-1) >= wanted.squeeze(1)
    _scatter_nucleus(kept, ordered, order, wanted)
    for row in (~reached).nonzero().flatten().tolist():
        ordered, order = chosen[row : row + 1].sort(dim=-1, descending=True)
        kept[row] = 0.0
        _scatter_nucleus(kept[row : row + 1], ordered, order, wanted[row : row + 1])
    if chosen is probs:
        return kept
    return probs.index_copy(0, torch.tensor(rows, device=probs.device), kept)


def _scatter_nucleus(kept: torch.Tensor, ordered: torch.Tensor, order: torch.Tensor, wanted: torch.Tensor) -> None:
    before = ordered.cumsum(dim=-1) - ordered
    kept.scatter_(1, order, torch.where(before < wanted, ordered, torch.zeros_like(ordered)))

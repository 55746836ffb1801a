"""What is left of the tokens that could be drawn, row by row."""

import pytest
import torch

from replica.sampling.token_filters import keep_min_p, keep_top_p


def test_min_p_keeps_a_share_of_the_likeliest() -> None:
    probs = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.5, 0.25, 0.15, 0.1]])
    kept = keep_min_p(probs, [0.3, 0.0])
    assert kept[0].tolist() == pytest.approx([0.5, 0.25, 0.15, 0.0])
    assert torch.equal(kept[1], probs[1])


def test_top_p_of_flat_and_sharp_rows_beside_each_other() -> None:
    """Of 5,000 nearly equal tokens and of a sharp row, the smallest set that reaches top_p; 1 keeps a row as it is."""
    flat = torch.softmax(torch.linspace(0, 0.5, 5000), dim=-1)
    sharp = torch.softmax(torch.randn(5000, generator=torch.Generator().manual_seed(2)) * 8, dim=-1)
    kept = keep_top_p(torch.stack([flat, sharp, sharp]), [0.9, 0.9, 1.0])
    for row, probs in zip(kept[:2], (flat, sharp), strict=True):
        smallest = row[row > 0].min()
        assert torch.equal(row > 0, probs >= smallest)
        assert row.sum().item() >= 0.9 - 1e-3
        assert (row.sum() - smallest).item() < 0.9 + 1e-3
    assert torch.equal(kept[2], sharp)

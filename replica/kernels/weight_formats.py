"""Finds the smallest form of a weight matrix from which the very same fp32 numbers come out again.

Decoding reads every weight once per token, so bytes are time. Many checkpoints hold fewer than 32 bits per weight: they
were trained in bfloat16, or come from a quantised GGUF file. Nothing is rounded here: a matrix that does not fit stays
fp32, and logits keep their bits.
"""

from dataclasses import dataclass

import torch

GROUP = 32
"""Inputs that share a scale, as in GGUF's Q4_0, Q4_1 and Q8_0."""
_PROBE_ROWS = 16
FLOAT32, BFLOAT16, SCALED_INT8, AFFINE_INT4 = range(4)
"""csrc/linear.h"""
BITS = (32, 16, 8, 4)
FORMAT_NAMES = ("float32", "bfloat16", "int8 with scales", "int4 with scales and offsets")


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """codes: [n, k]: float32, the bits of bfloat16 as int16, int8, or uint8 below 16. scales, offsets: [n, groups]."""

    format: int
    codes: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None


def smallest_exact(weight: torch.Tensor) -> StoredWeight:
    """weight: fp32 [n, k]."""
    for store in (_affine_int4, _scaled_int8, _bfloat16):
        # A few rows tell at once that a format does not fit, which is what most matrices meet.
        if store(weight[:_PROBE_ROWS]) is not None and (stored := store(weight)) is not None:
            return stored
    return StoredWeight(FLOAT32, weight)


def _bfloat16(weight: torch.Tensor) -> StoredWeight | None:
    narrow = weight.bfloat16()
    return StoredWeight(BFLOAT16, narrow.view(torch.int16)) if torch.equal(narrow.float(), weight) else None


def _scaled_int8(weight: torch.Tensor) -> StoredWeight | None:
    """GGUF's Q8_0: scale * code, the largest code of a group being 127."""
    groups = _grouped(weight)
    scales = _half(groups.abs().amax(-1) / 127)
    codes = _codes(groups, scales).clamp(-127, 127)
    if not torch.equal(codes * scales.unsqueeze(-1), groups):
        return None
    return StoredWeight(SCALED_INT8, _ungrouped(codes, weight).to(torch.int8), scales)


def _affine_int4(weight: torch.Tensor) -> StoredWeight | None:
    """GGUF's Q4_0 and Q4_1: offset + scale * code. The smallest number of a group is its offset."""
    groups = _grouped(weight)
    offsets, span = groups.amin(-1), groups.amax(-1) - groups.amin(-1)
    scales = _half(span / 15)
    codes = _codes(groups - offsets.unsqueeze(-1), scales)
    unfit = ~_fits_int4(codes, scales, offsets, groups)
    for highest in range(14, 0, -1):  # the code of a group's largest number, where that is not 15
        where = unfit.nonzero(as_tuple=True)
        if not len(where[0]):
            break
        low, numbers = offsets[where], groups[where]
        scale = _half(span[where] / highest)
        code = _codes(numbers - low.unsqueeze(-1), scale)
        fits = _fits_int4(code, scale, low, numbers)
        hits = tuple(index[fits] for index in where)
        scales[hits], codes[hits], unfit[hits] = scale[fits], code[fits], False
    if unfit.any():
        return None
    return StoredWeight(AFFINE_INT4, _ungrouped(codes, weight).to(torch.uint8), scales, offsets)


def _fits_int4(codes: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Which groups come out again. scale * code has at most 11 + 4 bits, so that the sum is what one fused multiply-add
    gives."""
    again = (codes * scales.unsqueeze(-1)).add_(offsets.unsqueeze(-1))
    return ((again == numbers) & (codes <= 15)).all(-1)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    """[n, groups, GROUP], the last group filled up with its last number."""
    num_missing = -weight.shape[1] % GROUP
    if num_missing:
        weight = torch.cat([weight, weight[:, -1:].expand(-1, num_missing)], dim=1)
    return weight.view(weight.shape[0], -1, GROUP)


def _ungrouped(codes: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return codes.flatten(1)[:, : weight.shape[1]]


def _half(scales: torch.Tensor) -> torch.Tensor:
    """GGUF keeps scales in fp16, so the one that was used is the nearest."""
    return scales.half().float()


def _codes(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (numbers / scales.clamp_min(1e-30).unsqueeze(-1)).round_()

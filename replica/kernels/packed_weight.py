"""A weight matrix in the order in which the CPU kernels read it, no larger than its numbers need."""

import ctypes
from collections.abc import Sequence
from typing import Literal

import torch

from replica.kernels import structs
from replica.kernels.native_library import load_native
from replica.kernels.weight_formats import BITS, FLOAT32, StoredWeight, smallest_exact

Gate = Literal["none", "silu", "gelu_tanh"]
_GATES: dict[Gate, int] = {"none": 0, "silu": 1, "gelu_tanh": 2}


class PackedWeight:
    """One linear layer, or several that read the same input, as panels of adjacent output columns.

    `x @ weight.T + bias` for all rows of the given weights, one after another. With a gate there are exactly two, gate
    and up, and the output is act(gate) * up.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor | None],
        gate: Gate = "none",
        compress: bool = True,
    ):
        """weights: fp32 [n_i, k]; biases: [n_i] or None. compress: where that changes no number.

        Raises ValueError where the weights do not fit together.
        """
        if len({weight.shape[1] for weight in weights}) != 1 or len(weights) != len(biases):
            raise ValueError(f"weights of shapes {[tuple(w.shape) for w in weights]} do not read one input")
        if gate != "none" and (len(weights) != 2 or weights[0].shape != weights[1].shape):
            raise ValueError(f"a gate joins two equal weights, got {[tuple(w.shape) for w in weights]}")
        joined = torch.cat([weight.detach() for weight in weights])
        num_rows, self.num_inputs = joined.shape
        panel = int(load_native().panel_width())
        order = _column_order(num_rows, panel, gated=gate != "none")
        stored = smallest_exact(joined) if compress else StoredWeight(FLOAT32, joined)
        self.format = stored.format
        self._packed = _panels(_words(stored.codes, self.format), order, panel)
        self._scales = None if stored.scales is None else _panels(stored.scales, order, panel)
        self._offsets = None if stored.offsets is None else _panels(stored.offsets, order, panel)
        self._bias = _packed_bias(weights, biases, order)
        self.num_outputs = num_rows if gate == "none" else num_rows // 2
        self.struct = structs.Linear(
            weight=self._packed.data_ptr(),
            scales=_address(self._scales),
            offsets=_address(self._offsets),
            bias=_address(self._bias),
            n=self.num_outputs,
            k=self.num_inputs,
            gate=_GATES[gate],
            format=self.format,
        )

    @property
    def num_bytes(self) -> int:
        """What one pass over the weights reads."""
        return sum(part.nbytes for part in (self._packed, self._scales, self._offsets) if part is not None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: fp32 [..., k]. Returns [..., n]; a row has the same bits whatever rows stand beside it."""
        rows = x.reshape(-1, self.num_inputs).contiguous()
        out = torch.empty(rows.shape[0], self.num_outputs)
        load_native().run_linear(
            ctypes.byref(self.struct), rows.data_ptr(), rows.shape[0], out.data_ptr(), torch.get_num_threads()
        )
        return out.view(*x.shape[:-1], self.num_outputs)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _words(codes: torch.Tensor, weight_format: int) -> torch.Tensor:
    """[n, k] codes -> [n, words] int32 of 32 / bits codes each, the first in the lowest bits; fp32 as it is."""
    if weight_format == FLOAT32:
        return codes
    bits = BITS[weight_format]
    per_word = 32 // bits
    codes = torch.nn.functional.pad(codes.to(torch.int32) & (2**bits - 1), (0, -codes.shape[1] % per_word))
    parts = codes.view(codes.shape[0], -1, per_word).unbind(-1)
    words = parts[0].clone()
    for i, part in enumerate(parts[1:], start=1):
        words |= part << (bits * i)
    return words


def _panels(rows: torch.Tensor, order: torch.Tensor, panel: int) -> torch.Tensor:
    """rows: [n, m] -> [panels, m, panel], column j of a panel being row order[j]; zeros where that is -1."""
    ordered = rows[order.clamp_min(0)]
    ordered[order < 0] = 0
    return ordered.view(-1, panel, rows.shape[1]).transpose(1, 2).contiguous()


def _column_order(num_rows: int, panel: int, gated: bool) -> torch.Tensor:
    """For each packed column the row of the joined weights, -1 for padding."""
    if not gated:
        order = torch.full((-(-num_rows // panel) * panel,), -1, dtype=torch.int64)
        order[:num_rows] = torch.arange(num_rows)
        return order
    half = panel // 2
    gates = _column_order(num_rows // 2, half, gated=False).view(-1, half)
    ups = torch.where(gates < 0, gates, gates + num_rows // 2)
    return torch.stack([gates, ups], dim=1).flatten()


def _packed_bias(
    weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], order: torch.Tensor
) -> torch.Tensor | None:
    if all(bias is None for bias in biases):
        return None
    parts = [
        torch.zeros(weight.shape[0]) if bias is None else bias.detach().float()
        for weight, bias in zip(weights, biases, strict=True)
    ]
    return torch.where(order < 0, 0.0, torch.cat(parts)[order.clamp_min(0)])

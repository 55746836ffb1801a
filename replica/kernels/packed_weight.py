"""A weight matrix in the order in which the CPU kernels read it."""

import ctypes
from collections.abc import Sequence
from typing import Literal

import torch

from replica.kernels import structs
from replica.kernels.native_library import load_native

Gate = Literal["none", "silu", "gelu_tanh"]
_GATES: dict[Gate, int] = {"none": 0, "silu": 1, "gelu_tanh": 2}


class PackedWeight:
    """One linear layer, or several that read the same input, as panels of adjacent output columns.

    `x @ weight.T + bias` for all rows of the given weights, one after another. With a gate there are exactly two, gate
    and up, and the output is act(gate) * up.
    """

    def __init__(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None], gate: Gate = "none"):
        """weights: fp32 [n_i, k]; biases: [n_i] or None. Raises ValueError where they do not fit together."""
        if len({weight.shape[1] for weight in weights}) != 1 or len(weights) != len(biases):
            raise ValueError(f"weights of shapes {[tuple(w.shape) for w in weights]} do not read one input")
        if gate != "none" and (len(weights) != 2 or weights[0].shape != weights[1].shape):
            raise ValueError(f"a gate joins two equal weights, got {[tuple(w.shape) for w in weights]}")
        library = load_native()
        joined = torch.cat([weight.detach() for weight in weights]).contiguous()
        num_rows, self.num_inputs = joined.shape
        order = _column_order(num_rows, int(library.panel_width()), gated=gate != "none")
        self.packed = torch.empty(order.numel() * self.num_inputs)
        library.pack_weight(
            joined.data_ptr(), self.num_inputs, order.data_ptr(), order.numel() // int(library.panel_width()),
            self.packed.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        self.bias = _packed_bias(weights, biases, order)
        self.num_outputs = num_rows if gate == "none" else num_rows // 2
        self.struct = structs.Linear(
            weight=self.packed.data_ptr(),
            bias=None if self.bias is None else self.bias.data_ptr(),
            n=self.num_outputs,
            k=self.num_inputs,
            gate=_GATES[gate],
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: fp32 [..., k]. Returns [..., n]; a row has the same bits whatever rows stand beside it."""
        rows = x.reshape(-1, self.num_inputs).contiguous()
        out = torch.empty(rows.shape[0], self.num_outputs)
        load_native().run_linear(
            ctypes.byref(self.struct), rows.data_ptr(), rows.shape[0], out.data_ptr(), torch.get_num_threads()
        )
        return out.view(*x.shape[:-1], self.num_outputs)


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

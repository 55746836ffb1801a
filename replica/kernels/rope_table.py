"""Cosines and sines of every position, as the model itself computes them."""

import inspect

import torch


class RopeTable:
    """Grows to the largest position seen, by doubling.

    Only right for RoPE whose angle is a function of the position alone; models whose angles depend on the batch are
    refused at load (config_refusals.py).
    """

    def __init__(self, rotary: torch.nn.Module, kind: str | None):
        """kind: the layer type, for models whose layers turn at different speeds."""
        self._rotary = rotary
        parameters = inspect.signature(rotary.forward).parameters
        self._extra = {"layer_type": kind} if "layer_type" in parameters else {}
        self.cos, self.sin = self._compute(0, 256)

    @property
    def rotary_dim(self) -> int:
        return self.cos.shape[-1]

    def cover(self, num_positions: int) -> bool:
        """Makes room for positions below num_positions; whether the tensors were replaced for that."""
        known = len(self.cos)
        if num_positions <= known:
            return False
        cos, sin = self._compute(known, max(num_positions, 2 * known))
        self.cos, self.sin = torch.cat([self.cos, cos]), torch.cat([self.sin, sin])
        return True

    def _compute(self, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(first, end).unsqueeze(0)
        with torch.inference_mode():
            cos, sin = self._rotary(torch.empty(0), position_ids=positions, **self._extra)
        return cos[0].contiguous(), sin[0].contiguous()

"""Gives a transformers model linear layers on packed weights."""

import torch

from replica.kernels.packed_weight import PackedWeight


class PackedLinear(torch.nn.Module):
    """Takes the place of an nn.Linear whose weights nobody trains; the original's memory is free once it is dropped."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = PackedWeight([linear.weight], [linear.bias])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._weight(x)


class PackedLinears:
    """All plain linear layers of a model, swapped for packed ones; `undo` puts the originals back."""

    def __init__(self, model: torch.nn.Module):
        """Layers of a class derived from nn.Linear are left alone: they compute something else."""
        self._originals: list[tuple[torch.nn.Module, str, torch.nn.Linear]] = []
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is torch.nn.Linear and child.weight.dtype == torch.float32:
                    self._originals.append((parent, name, child))
                    setattr(parent, name, PackedLinear(child))

    def undo(self) -> None:
        for parent, name, child in self._originals:
            setattr(parent, name, child)
        self._originals.clear()

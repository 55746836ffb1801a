"""Gives a transformers model linear layers on packed weights."""

import copy

import torch

from replica.kernels.packed_weight import PackedWeight


class PackedLinear(torch.nn.Module):
    """Takes the place of an nn.Linear whose weights nobody trains; the original's memory is free once it is dropped."""

    def __init__(self, linear: torch.nn.Linear, compress: bool = True):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = PackedWeight([linear.weight], [linear.bias], compress=compress)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._weight(x)


def with_packed_linears(model: torch.nn.Module, compress: bool = True) -> torch.nn.Module:
    """The same model, its other parts shared, with all plain linear layers on packed weights; `model` stays as it is.

    Layers of a class derived from nn.Linear are left alone: they compute something else.
    """
    copies: dict[int, torch.nn.Module] = {}

    def packed(module: torch.nn.Module) -> torch.nn.Module:
        if id(module) not in copies:
            if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
                copies[id(module)] = PackedLinear(module, compress)
            else:
                copies[id(module)] = twin = copy.copy(module)
                twin._modules = {name: child and packed(child) for name, child in module._modules.items()}
        return copies[id(module)]

    return packed(model)

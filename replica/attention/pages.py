"""The memory of all pages: one K and one V tensor per layer."""

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cache.kv_cache_manager import PageCopy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores per token: `num_kv_heads` keys of `key_dim` and values of `value_dim` numbers.

    expanded: these are latents, from which the model itself computes the keys and values that it attends to.
    sliding_window: a query of this layer sees that many newest tokens, itself included; None sees all.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    expanded: bool = False
    sliding_window: int | None = None

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVPages:
    """Per layer [num_pages, page_size, num_kv_heads, head_dim], written by slot and read by page."""

    def __init__(
        self, shapes: Sequence[LayerShape], num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ):
        """Zeros; on a CPU the system gives memory for a page only when something is written there.

        Raises OSError, RuntimeError or OutOfMemoryError from torch where the memory is not there.
        """
        self.page_size = page_size
        self.shapes = tuple(shapes)
        self._layers = [
            (
                _zeros((num_pages, page_size, shape.num_kv_heads, shape.key_dim), dtype, device),
                _zeros((num_pages, page_size, shape.num_kv_heads, shape.value_dim), dtype, device),
            )
            for shape in shapes
        ]
        self._flat = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._layers]

    def layer(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._layers[layer_idx]

    def write(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """key, value: [num_tokens, num_kv_heads, head_dim]; slots: [num_tokens] int64 of page * page_size + offset."""
        keys, values = self._flat[layer_idx]
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """In the given order: a page may be the target of one copy and the source of a later one."""
        for copy in copies:
            for keys, values in self._layers:
                keys[copy.target, : copy.num_tokens] = keys[copy.source, : copy.num_tokens]
                values[copy.target, : copy.num_tokens] = values[copy.source, : copy.num_tokens]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """torch.zeros writes its zeros, and so takes all memory at once; fresh memory of the system is zero as it is."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)

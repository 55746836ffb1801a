"""The memory of all pages: a page is one contiguous blob, the keys and values of its tokens in all layers.

[layer 0: keys [page_size, num_kv_heads, key_dim], values [page_size, num_kv_heads, value_dim]] [layer 1: ...] ...
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from cache.kv_cache_manager import PageCopy

_ALIGNMENT = 64
"""Bytes, a cache line: where each layer's keys and values begin in a page. CUDA's kernels load 16 at once."""

Places = tuple[torch.Tensor, torch.Tensor]
"""Where tokens lie: page and offset inside it, each [num_tokens] int64."""


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


def bytes_per_page(shapes: Sequence[LayerShape], page_size: int, dtype: torch.dtype) -> int:
    return _part_starts(shapes, page_size, dtype)[-1]


class KVPages:
    """[num_pages, page_bytes], written by slot and read by page.

    Per layer that is seen as [num_pages, page_size, num_kv_heads, head_dim]: tokens lie side by side inside a page, and
    the next page begins a whole page's bytes further on.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ):
        """Zeros; on a CPU the system gives memory for a page only when something is written there.

        Raises OSError, RuntimeError or OutOfMemoryError from torch where the memory is not there.
        """
        self.page_size = page_size
        self.shapes = tuple(shapes)
        starts = _part_starts(shapes, page_size, dtype)
        self.page_bytes = starts[-1]
        self._blobs = _zeros(num_pages, self.page_bytes, device)
        numbers = self._blobs.view(dtype)

        def part(index: int, num_heads: int, dim: int) -> torch.Tensor:
            first = starts[index] // dtype.itemsize
            return numbers[:, first : first + page_size * num_heads * dim].unflatten(1, (page_size, num_heads, dim))

        self._layers = [
            (part(2 * i, shape.num_kv_heads, shape.key_dim), part(2 * i + 1, shape.num_kv_heads, shape.value_dim))
            for i, shape in enumerate(shapes)
        ]

    @property
    def num_pages(self) -> int:
        return self._blobs.shape[0]

    def blob(self, page: int) -> torch.Tensor:
        """[page_bytes] uint8: all that the page holds, in the memory where it lies. Equal bytes in another pool of the
        same shapes, page size and dtype are the same keys and values."""
        return self._blobs[page]

    def layer(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [num_pages, page_size, num_kv_heads, head_dim]; only pages are not side by side."""
        return self._layers[layer_idx]

    def places(self, slots: torch.Tensor) -> Places:
        """slots: [num_tokens] int64 of page * page_size + offset."""
        return slots // self.page_size, slots % self.page_size

    def write(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor, places: Places) -> None:
        """key, value: [num_tokens, num_kv_heads, head_dim]; no two tokens at one place."""
        keys, values = self._layers[layer_idx]
        keys.index_put_(places, key)
        values.index_put_(places, value)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """In the given order: a page may be the target of one copy and the source of a later one."""
        for copy in copies:
            if copy.num_tokens == self.page_size:
                self._blobs[copy.target] = self._blobs[copy.source]
                continue
            for part in (part for layer in self._layers for part in layer):
                part[copy.target, : copy.num_tokens] = part[copy.source, : copy.num_tokens]


def _part_starts(shapes: Sequence[LayerShape], page_size: int, dtype: torch.dtype) -> list[int]:
    """Bytes from a page's beginning to the keys of layer 0, its values, the keys of layer 1, ..., and its end."""
    numbers = [shape.num_kv_heads * dim for shape in shapes for dim in (shape.key_dim, shape.value_dim)]
    sizes = (-(-number * page_size * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for number in numbers)
    return list(accumulate(sizes, initial=0))


def _zeros(num_pages: int, page_bytes: int, device: torch.device) -> torch.Tensor:
    """torch.zeros writes its zeros, and so takes all memory at once; fresh memory of the system is zero as it is."""
    if device.type != "cpu":
        return torch.zeros(num_pages, page_bytes, dtype=torch.uint8, device=device)
    memory = mmap.mmap(-1, num_pages * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8).view(num_pages, page_bytes)

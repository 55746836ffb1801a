"""What the attention kernels for CUDA have in common."""

from importlib.util import find_spec
from typing import ClassVar

import torch

from replica.attention.backend import AttentionBackend, LayerOptions
from replica.attention.device_layout import LayoutCache


class CudaAttention(AttentionBackend):
    """Half precision, one pass over the keys (A46), a layout that is moved to the device once per step.

    package: what must be installed; None is torch alone. min_capability: of the GPU.
    """

    device_type: ClassVar[str | None] = "cuda"
    package: ClassVar[str | None] = None
    min_capability: ClassVar[tuple[int, int]] = (8, 0)

    def __init__(self) -> None:
        self._layouts = LayoutCache()

    @classmethod
    def unavailable_because(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if device.type != "cuda":
            return f"it runs on CUDA devices, not on {device.type}"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it computes in float16 or bfloat16, not in {str(dtype).removeprefix('torch.')}"
        if torch.cuda.get_device_capability(device) < cls.min_capability:
            return "it needs a GPU of compute capability {}.{} or later".format(*cls.min_capability)
        if cls.package is not None and find_spec(cls.package) is None:
            return f"the package {cls.package} is not installed"
        return None

    @classmethod
    def page_size_multiple(cls) -> int:
        return 256  # of FlashAttention 2, which torch's varlen kernel has underneath too


def causal_window(options: LayerOptions) -> tuple[int, int]:
    """Keys before and behind a query that it sees besides itself; -1 is all."""
    return (-1 if options.sliding_window is None else options.sliding_window - 1, 0)

"""Picks the attention backend."""

import logging
from math import lcm

import torch

from replica.attention.backend import AttentionBackend
from replica.attention.flash_attn_backend import FlashAttention, FlashAttention3
from replica.attention.torch_backend import TorchAttention
from replica.attention.varlen_backend import VarlenAttention
from replica.kernels.native_backend import NativeAttention

logger = logging.getLogger(__name__)

BACKENDS: dict[str, type[AttentionBackend]] = {
    backend.name: backend
    for backend in (FlashAttention3, FlashAttention, VarlenAttention, NativeAttention, TorchAttention)
}
"""Fastest first: "auto" takes the first that can run and serves the model right."""


def backend_candidates(
    name: str, device: torch.device, dtype: torch.dtype, block_size: int, page_size: int | None = None
) -> list[tuple[AttentionBackend, int]]:
    """Backends that can run here, best first, each with the tokens of a page: the given ones, else the smallest
    multiple of a block that it takes. One entry where a backend is named.

    Raises ValueError with the reason where the named backend cannot run here, or is not known.
    """
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"attention_backend must be auto or one of {', '.join(BACKENDS)}, got {name!r}")
    found: list[tuple[AttentionBackend, int]] = []
    for backend in BACKENDS.values() if name == "auto" else (BACKENDS[name],):
        reason = backend.unavailable_because(device, dtype)
        multiple = backend.page_size_multiple()
        if reason is None and page_size is not None and page_size % multiple:
            reason = f"it needs pages of a multiple of {multiple} tokens, and page_size is {page_size}"
        if reason is None:
            found.append((backend(), page_size or lcm(block_size, multiple)))
        elif name != "auto":
            raise ValueError(f"attention_backend {name} cannot be used: {reason}")
        else:
            logger.info("attention backend %s is not used: %s", backend.name, reason)
    return found


def unavailable_before(chosen: AttentionBackend, device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The faster backends made for such a device, each with the reason why it cannot run here."""
    names = list(BACKENDS)
    faster = (BACKENDS[name] for name in names[: names.index(chosen.name)])
    reasons = ((b.name, b.unavailable_because(device, dtype)) for b in faster if b.device_type == device.type)
    return tuple(f"{name} attention: {reason}" for name, reason in reasons if reason is not None)

"""Picks the attention backend."""

import torch

from replica.attention.backend import AttentionBackend
from replica.attention.torch_backend import TorchAttention

BACKENDS: dict[str, type[AttentionBackend]] = {backend.name: backend for backend in (TorchAttention,)}
"""Fastest first: "auto" takes the first that can run."""


def choose_backend(name: str, device: torch.device, dtype: torch.dtype, page_size: int) -> AttentionBackend:
    """Raises ValueError with the reason where the named backend cannot run here, or is not known."""
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"attention_backend must be auto or one of {', '.join(BACKENDS)}, got {name!r}")
    for backend in BACKENDS.values() if name == "auto" else (BACKENDS[name],):
        reason = backend.unavailable_because(device, dtype)
        if reason is None and page_size % backend.page_size_multiple():
            reason = f"it needs pages of a multiple of {backend.page_size_multiple()} tokens, not {page_size}"
        if reason is None:
            return backend()
        if name != "auto":
            raise ValueError(f"attention_backend {name} cannot be used: {reason}")
    raise ValueError("no attention backend can run here")

"""What can be known of the CUDA backends without a GPU; `test_attention_backends.py` runs them where there is one."""

import pytest
import torch

from replica.attention.backend import LayerOptions
from replica.attention.cuda_backend import CudaAttention, causal_window
from replica.model.backend_choice import BACKENDS, backend_candidates

CUDA = [backend for backend in BACKENDS.values() if issubclass(backend, CudaAttention)]


def test_the_window_counts_the_query_itself() -> None:
    assert causal_window(LayerOptions(1.0)) == (-1, 0)
    assert causal_window(LayerOptions(1.0, sliding_window=1)) == (0, 0)
    assert causal_window(LayerOptions(1.0, sliding_window=8)) == (7, 0)


@pytest.mark.parametrize("backend", CUDA)
def test_what_stands_in_the_way_is_said(backend: type[CudaAttention], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert "not on cpu" in str(backend.unavailable_because(cpu, torch.float16))
    assert "not in float32" in str(backend.unavailable_because(cuda, torch.float32))
    assert "compute capability" in str(backend.unavailable_because(cuda, torch.bfloat16))


def test_pages_are_the_smallest_multiple_of_a_block_that_the_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = backend_candidates("auto", torch.device("cuda"), torch.bfloat16, 16)
    assert {backend.name: page_size for backend, page_size in found}["varlen"] == 256
    with pytest.raises(ValueError, match=r"pages of a multiple of 256 tokens, and page_size is 64"):
        backend_candidates("varlen", torch.device("cuda"), torch.bfloat16, 16, 64)


def test_an_unknown_name_and_one_that_cannot_run_are_refused() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match=r"attention_backend must be auto or one of .*torch, got 'flash'"):
        backend_candidates("flash", cpu, torch.float32, 16)
    with pytest.raises(ValueError, match=r"attention_backend flash_attn cannot be used: it runs on CUDA devices"):
        backend_candidates("flash_attn", cpu, torch.float32, 16)

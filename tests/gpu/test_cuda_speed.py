"""Speed of each attention backend beside what the device's memory and arithmetic allow. Printed, never asserted."""

import pytest
import torch

from replica.attention.backend import BatchLayout, LayerOptions
from replica.model.backend_choice import BACKENDS

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def milliseconds(run, repeats: int = 20) -> float:
    """Median over runs timed on the device."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def read_bytes_per_second() -> float:
    memory = torch.ones(1 << 29, device="cuda", dtype=torch.bfloat16)
    return memory.nbytes / milliseconds(memory.sum) * 1e3


def flops_per_second() -> float:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192**3 / milliseconds(lambda: a @ a) * 1e3


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "native"])
def test_decode_and_prefill_against_their_bounds(name: str) -> None:
    backend_class = BACKENDS[name]
    reason = backend_class.unavailable_because(torch.device("cuda"), torch.bfloat16)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    backend, page_size = backend_class(), max(16, backend_class.page_size_multiple())
    options = LayerOptions(scaling=HEAD_DIM**-0.5)
    num_requests, context = 64, 4096
    num_pages = num_requests * context // page_size
    keys, values = (
        torch.randn(num_pages, page_size, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )
    tables = torch.randperm(num_pages, device="cuda").view(num_requests, -1)

    def attend(num_queries: int, requests: int):
        query = torch.randn(requests * num_queries, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        starts = tuple(range(0, requests * num_queries + 1, num_queries))
        slots = torch.zeros(requests * num_queries, dtype=torch.long, device="cuda")
        layout = BatchLayout(starts, (context,) * requests, tuple(tables[:requests]), slots)
        return lambda: backend.attend(query, keys, values, layout, options)

    decode_ms = milliseconds(attend(1, num_requests))
    bound_ms = (keys.nbytes + values.nbytes) / read_bytes_per_second() * 1e3
    prefill_ms = milliseconds(attend(context, 1))
    prefill_bound_ms = 2 * HEADS * HEAD_DIM * context**2 / flops_per_second() * 1e3  # causal: half of 4 x
    print(
        f"\n{name} on {torch.cuda.get_device_name()}: decode of {num_requests} x {context}: {decode_ms:.3f} ms "
        f"({bound_ms / decode_ms:.0%} of the memory bound); prefill of {context}: {prefill_ms:.3f} ms "
        f"({prefill_bound_ms / prefill_ms:.0%} of the matrix-product bound)"
    )
    assert decode_ms > 0.0
    assert prefill_ms > 0.0

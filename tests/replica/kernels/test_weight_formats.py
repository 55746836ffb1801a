"""Weights kept in fewer bits: only where the very same numbers come out, and then with the very same results."""

import pytest
import torch

from replica.kernels.native_library import native_unavailable_because
from replica.kernels.packed_weight import PackedWeight
from replica.kernels.weight_formats import (
    AFFINE_INT4,
    BFLOAT16,
    FLOAT32,
    SCALED_INT8,
    StoredWeight,
    smallest_exact,
)

native = pytest.mark.skipif(
    native_unavailable_because() is not None, reason=f"no native kernels: {native_unavailable_because()}"
)
SHAPES = [(1, 32), (20, 64), (33, 100), (50, 7), (48, 576), (17, 1408)]


def q4_0(n: int, k: int) -> torch.Tensor:
    """GGUF: d * (q - 8), d = (the number of largest magnitude) / -8 in fp16."""
    x = torch.randn(n, -(-k // 32), 32)
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    scale = (largest / -8).half().float()
    return (((x / scale).round().clamp(-8, 7)) * scale).flatten(1)[:, :k].contiguous()


def q4_1(n: int, k: int) -> torch.Tensor:
    """GGUF: d * q + m, d = (max - min) / 15 and m = min in fp16."""
    x = torch.randn(n, -(-k // 32), 32)
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scale, offset = ((high - low) / 15).half().float(), low.half().float()
    return ((((x - low) / scale).round().clamp(0, 15)) * scale + offset).flatten(1)[:, :k].contiguous()


def q8_0(n: int, k: int) -> torch.Tensor:
    """GGUF: d * q, d = max(|x|) / 127 in fp16."""
    x = torch.randn(n, -(-k // 32), 32)
    scale = x.abs().amax(-1, keepdim=True) / 127
    return ((x / scale).round() * scale.half().float()).flatten(1)[:, :k].contiguous()


def bfloat16(n: int, k: int) -> torch.Tensor:
    return torch.randn(n, k).bfloat16().float()


def restored(stored: StoredWeight) -> torch.Tensor:
    """The numbers that a stored weight stands for, in torch."""
    if stored.format == BFLOAT16:
        return stored.codes.view(torch.bfloat16).float()
    numbers = stored.codes.float()
    if stored.scales is not None:
        numbers = numbers * stored.scales.repeat_interleave(32, dim=1)[:, : numbers.shape[1]]
    if stored.offsets is not None:
        numbers = numbers + stored.offsets.repeat_interleave(32, dim=1)[:, : numbers.shape[1]]
    return numbers


@pytest.mark.parametrize(("n", "k"), [shape for shape in SHAPES if shape[1] % 32 == 0])
@pytest.mark.parametrize(
    ("make", "expected"),
    [(q4_0, AFFINE_INT4), (q4_1, AFFINE_INT4), (q8_0, SCALED_INT8), (bfloat16, BFLOAT16), (torch.randn, FLOAT32)],
)
def test_each_kind_of_checkpoint_is_recognised(n: int, k: int, make: object, expected: int) -> None:
    torch.manual_seed(n + k)
    weight = make(n, k)  # type: ignore[operator]
    stored = smallest_exact(weight)
    assert stored.format == expected
    assert torch.equal(restored(stored), weight)


@pytest.mark.parametrize("make", [q4_0, q4_1, q8_0, bfloat16])
def test_one_number_that_does_not_fit_is_enough(make: object) -> None:
    torch.manual_seed(3)
    weight = make(40, 96)  # type: ignore[operator]
    weight[37, 50] += 1e-4  # behind the rows that are looked at first
    stored = smallest_exact(weight)
    assert torch.equal(restored(stored), weight)
    assert stored.format == FLOAT32


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.0, 1e-42, 3e38])
def test_odd_numbers_come_out_as_they_were(value: float) -> None:
    weight = torch.full((4, 64), value)
    torch.testing.assert_close(restored(smallest_exact(weight)), weight, rtol=0, atol=0, equal_nan=True)


@native
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("make", [q4_0, q4_1, q8_0, bfloat16])
@pytest.mark.parametrize("m", [1, 2, 4, 5, 17, 130])
def test_products_have_the_bits_of_fp32_weights(n: int, k: int, make: object, m: int) -> None:
    torch.manual_seed(n * k + m)
    weight, x = make(n, k), torch.randn(m, k)  # type: ignore[operator]
    plain = PackedWeight([weight], [None], compress=False)
    assert plain.format == FLOAT32
    assert torch.equal(PackedWeight([weight], [None])(x), plain(x))


@native
@pytest.mark.parametrize("make", [q4_1, q8_0, bfloat16])
def test_gates_too_and_fewer_bytes_are_read(make: object) -> None:
    torch.manual_seed(5)
    gate, up, x = make(40, 576), make(40, 576), torch.randn(3, 576)  # type: ignore[operator]
    small = PackedWeight([gate, up], [None, None], "silu")
    plain = PackedWeight([gate, up], [None, None], "silu", compress=False)
    assert torch.equal(small(x), plain(x))
    assert small.num_bytes <= 0.5 * plain.num_bytes


@native
def test_joined_weights_of_different_kinds_stay_fp32() -> None:
    torch.manual_seed(6)
    weights = [q4_1(20, 64), torch.randn(9, 64)]
    assert PackedWeight(weights, [None, None]).format == FLOAT32

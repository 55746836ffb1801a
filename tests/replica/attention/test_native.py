"""The C attention kernel: right against plain torch, and bit for bit the same however the work is cut."""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from replica.attention.backend import BatchLayout, LayerOptions
from replica.attention.torch_backend import TorchAttention
from replica.kernels.native_backend import NativeAttention
from replica.kernels.native_library import native_unavailable_because

pytestmark = pytest.mark.skipif(
    native_unavailable_because() is not None, reason=f"no native kernels: {native_unavailable_because()}"
)


@dataclass(frozen=True)
class Sequence:
    """keys, values: [num_tokens, num_kv_heads, head_dim]; query: [num_tokens, num_heads, head_dim]."""

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    @classmethod
    def random(cls, num_tokens: int, num_heads: int, num_kv_heads: int, key_dim: int, value_dim: int) -> "Sequence":
        return cls(
            torch.randn(num_tokens, num_heads, key_dim),
            torch.randn(num_tokens, num_kv_heads, key_dim),
            torch.randn(num_tokens, num_kv_heads, value_dim),
        )


class Pages:
    """Sequences laid into pages in a random order; all other memory is NaN."""

    def __init__(self, sequences: list[Sequence], page_size: int, seed: int = 0):
        needed = [-(-len(sequence.keys) // page_size) for sequence in sequences]
        order = list(range(sum(needed) + 3))
        random.Random(seed).shuffle(order)
        first = sequences[0]
        self.page_size = page_size
        self.keys = torch.full((len(order), page_size, *first.keys.shape[1:]), float("nan"))
        self.values = torch.full((len(order), page_size, *first.values.shape[1:]), float("nan"))
        self.tables = [torch.tensor([order.pop() for _ in range(num)]) for num in needed]
        for sequence, table in zip(sequences, self.tables, strict=True):
            for token in range(len(sequence.keys)):
                page, offset = table[token // page_size], token % page_size
                self.keys[page, offset], self.values[page, offset] = sequence.keys[token], sequence.values[token]

    def layout(self, spans: list[tuple[int, int, int]]) -> BatchLayout:
        """spans: (sequence, first query, end) of each request."""
        starts = [0]
        for _, start, end in spans:
            starts.append(starts[-1] + end - start)
        tables = tuple(self.tables[which][: -(-end // self.page_size)] for which, _, end in spans)
        return BatchLayout(tuple(starts), tuple(end for *_, end in spans), tables, torch.empty(0, dtype=torch.int64))


def attend(
    backend: NativeAttention | TorchAttention,
    sequences: list[Sequence],
    pages: Pages,
    spans: list[tuple[int, int, int]],
    options: LayerOptions,
) -> torch.Tensor:
    query = torch.cat([sequences[which].query[start:end] for which, start, end in spans])
    return backend.attend(query, pages.keys, pages.values, pages.layout(spans), options)


@pytest.mark.parametrize("page_size", [1, 7, 16, 256])
@pytest.mark.parametrize("window", [None, 1, 9, 100])
@pytest.mark.parametrize("softcap", [None, 20.0])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "key_dim", "value_dim"), [(9, 3, 64, 64), (4, 4, 20, 36), (8, 1, 128, 8)]
)
def test_equals_plain_torch(
    page_size: int, window: int | None, softcap: float | None, heads: int, kv_heads: int, key_dim: int, value_dim: int
) -> None:
    torch.manual_seed(page_size)
    sequences = [Sequence.random(n, heads, kv_heads, key_dim, value_dim) for n in (1, 64, 150, 203)]
    pages = Pages(sequences, page_size)
    spans = [(0, 0, 1), (1, 0, 64), (2, 149, 150), (3, 70, 203)]
    options = LayerOptions(key_dim**-0.5, window, softcap)
    got = attend(NativeAttention(), sequences, pages, spans, options)
    # For the reference what lies beyond a sequence's end is zero: it only masks that, and 0 * NaN is NaN.
    clean = Pages(sequences, page_size)
    clean.keys.nan_to_num_(), clean.values.nan_to_num_()
    torch.testing.assert_close(got, attend(TorchAttention(), sequences, clean, spans, options), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("window", [None, 33])
def test_bits_do_not_depend_on_chunks_batch_pages_or_threads(window: int | None) -> None:
    torch.manual_seed(1)
    sequences = [Sequence.random(n, 6, 2, 64, 64) for n in (300, 77)]
    options = LayerOptions(0.125, window)
    native = NativeAttention()
    whole = attend(native, sequences, Pages(sequences, 16), [(0, 0, 300)], options)
    cuts = [0, 1, 2, 66, 128, 129, 299, 300]
    other_pages = Pages(sequences, 7, seed=5)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for start, end in pairwise(cuts):
            chunk = attend(native, sequences, other_pages, [(1, 70, 77), (0, start, end), (1, 3, 4)], options)
            assert torch.equal(chunk[7 : 7 + end - start], whole[start:end])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("window", [None, 40, 700])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 64), (5, 5, 256), (4, 1, 24)])
def test_a_context_shared_by_threads_gives_the_bits_of_a_prompt(
    window: int | None, heads: int, kv_heads: int, dim: int
) -> None:
    """A single query's context is cut into parts that threads take; a prompt's last query walks through them all."""
    torch.manual_seed(2)
    sequences = [Sequence.random(n, heads, kv_heads, dim, dim) for n in (1000, 256, 257, 513)]
    options, pages = LayerOptions(dim**-0.5, window), Pages(sequences, 16)
    spans = [(i, len(s.keys) - 1, len(s.keys)) for i, s in enumerate(sequences)]
    native, threads = NativeAttention(), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        alone = attend(native, sequences, pages, spans, options)
        torch.set_num_threads(1)
        for i, sequence in enumerate(sequences):
            num = len(sequence.keys)
            assert torch.equal(attend(native, sequences, pages, [(i, num - 60, num)], options)[-1], alone[i])
    finally:
        torch.set_num_threads(threads)
    clean = Pages(sequences, 16)
    clean.keys.nan_to_num_(), clean.values.nan_to_num_()
    expected = attend(TorchAttention(), sequences, clean, spans, options)
    torch.testing.assert_close(alone, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_reaches_every_query_that_sees_it_wherever_it_lies(bad: float) -> None:
    """In each lane of a register and each place of a tile; queries before it stay as they are."""
    torch.manual_seed(3)
    sequence = Sequence.random(130, 2, 1, 16, 16)
    options, native = LayerOptions(0.25), NativeAttention()
    query = sequence.query.abs()
    clean = Sequence(query, sequence.keys, sequence.values)
    expected = attend(native, [clean], Pages([clean], 16), [(0, 0, 130)], options)
    for token in (*range(64), 65, 127, 128, 129):
        keys = sequence.keys.clone()
        keys[token, 0, 0], keys[token, 0, 1] = bad, -bad  # with positive queries their sum is no number
        spoilt = Sequence(query, keys, sequence.values)
        got = attend(native, [spoilt], Pages([spoilt], 16), [(0, 0, 130)], options)
        assert torch.equal(got[:token], expected[:token])
        assert got[token:].isnan().all()


def test_is_not_offered_for_what_it_cannot_compute() -> None:
    assert "float32" in (NativeAttention.unavailable_because(torch.device("cpu"), torch.bfloat16) or "")
    assert "CPU" in (NativeAttention.unavailable_because(torch.device("cuda"), torch.float32) or "")

import torch

from replica.attention.backend import BatchLayout
from replica.attention.device_layout import DeviceLayout, LayoutCache


def layout() -> BatchLayout:
    """A prefill of 5, a continuation of 2 behind 6 cached tokens, a decode at position 8; pages of 4."""
    tables = (torch.tensor([7, 3]), torch.tensor([1, 2]), torch.tensor([4, 5, 6]))
    return BatchLayout((0, 5, 7, 8), (5, 8, 9), tables, torch.zeros(8, dtype=torch.int64))


def test_the_kernels_form_of_a_ragged_batch() -> None:
    made = DeviceLayout.of(layout())
    assert made.query_starts.tolist() == [0, 5, 7, 8]
    assert made.key_starts.tolist() == [0, 5, 13, 22]
    assert made.context_lens.tolist() == [5, 8, 9]
    assert made.page_tables.tolist() == [[7, 3, 0], [1, 2, 0], [4, 5, 6]]
    assert (made.max_queries, made.max_context) == (5, 9)
    assert {t.dtype for t in (made.query_starts, made.key_starts, made.context_lens, made.page_tables)} == {torch.int32}


def test_it_is_made_once_per_step() -> None:
    cache, first = LayoutCache(), layout()
    made = cache.get(first)
    assert cache.get(first) is made
    assert cache.get(layout()) is not made

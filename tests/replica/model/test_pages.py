"""A page is one contiguous blob: what lies where in it, and that its bytes are all there is to a page."""

import pytest
import torch

from cache.kv_cache_manager import PageCopy
from replica.attention.pages import KVPages, LayerShape, bytes_per_page

CPU = torch.device("cpu")
SHAPES = [LayerShape(3, 64, 64), LayerShape(1, 20, 12), LayerShape(1, 5, 3, expanded=True), LayerShape(2, 8, 24)]
NUM_PAGES = 5


def filled(page_size: int, dtype: torch.dtype = torch.float32, shapes: list[LayerShape] = SHAPES) -> KVPages:
    """Every number of every page is another one."""
    pages = KVPages(shapes, NUM_PAGES, page_size, dtype, CPU)
    for i in range(len(shapes)):
        for part in pages.layer(i):
            part.copy_(torch.randn(part.shape))
    return pages


def parts_of(pages: KVPages, page: int) -> list[torch.Tensor]:
    return [part[page] for i in range(len(pages.shapes)) for part in pages.layer(i)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 3, 16, 256])
def test_a_blob_holds_every_layers_part_contiguous_and_on_a_cache_line(page_size: int, dtype: torch.dtype) -> None:
    pages = KVPages(SHAPES, NUM_PAGES, page_size, dtype, CPU)
    assert pages.page_bytes == bytes_per_page(SHAPES, page_size, dtype)
    assert pages.page_bytes % 64 == 0
    for page in range(NUM_PAGES):
        blob = pages.blob(page)
        assert (blob.shape, blob.dtype, blob.is_contiguous()) == ((pages.page_bytes,), torch.uint8, True)
        end = 0
        for part in parts_of(pages, page):
            start = part.data_ptr() - blob.data_ptr()
            assert part.is_contiguous()
            assert end <= start < end + 64
            assert start % 64 == 0 == part.data_ptr() % 64
            end = start + part.numel() * dtype.itemsize
        assert end <= pages.page_bytes < end + 64


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_a_moved_blob_is_the_same_page_and_its_neighbours_stay(page_size: int) -> None:
    pages, others = filled(page_size), filled(page_size)
    before = [others.blob(page).clone() for page in range(NUM_PAGES)]
    others.blob(3).copy_(pages.blob(1))
    for got, expected in zip(parts_of(others, 3), parts_of(pages, 1), strict=True):
        assert torch.equal(got, expected)
    assert all(torch.equal(others.blob(page), before[page]) for page in range(NUM_PAGES) if page != 3)


@pytest.mark.parametrize("page_size", [1, 7, 16])
def test_a_token_is_written_to_its_slot_and_to_no_other(page_size: int) -> None:
    pages = filled(page_size)
    slots = torch.randperm(NUM_PAGES * page_size)[: max(1, 2 * page_size)]
    for i, shape in enumerate(SHAPES):
        expected = [part.clone() for part in pages.layer(i)]
        tokens = [torch.randn(len(slots), shape.num_kv_heads, dim) for dim in (shape.key_dim, shape.value_dim)]
        for whole, new in zip(expected, tokens, strict=True):
            whole.flatten(0, 1)[slots] = new
        untouched = [part.clone() for j in range(len(SHAPES)) if j != i for part in pages.layer(j)]
        pages.write(i, tokens[0], tokens[1], pages.places(slots))
        assert all(torch.equal(got, whole) for got, whole in zip(pages.layer(i), expected, strict=True))
        rest = [part for j in range(len(SHAPES)) if j != i for part in pages.layer(j)]
        assert all(torch.equal(got, whole) for got, whole in zip(rest, untouched, strict=True))


@pytest.mark.parametrize("num_tokens", [1, 5, 15, 16])
def test_a_copy_takes_so_many_tokens_of_all_layers(num_tokens: int) -> None:
    """Page 0 goes to 2, and from there to 4: in the given order."""
    pages = filled(16)
    expected = [
        [torch.cat([source[:num_tokens], own[num_tokens:]]) for source, own in zip(*sides, strict=True)]
        for sides in ((parts_of(pages, 0), parts_of(pages, 2)), (parts_of(pages, 0), parts_of(pages, 4)))
    ]
    others = [pages.blob(page).clone() for page in (0, 1, 3)]
    pages.copy([PageCopy(0, 2, num_tokens), PageCopy(2, 4, num_tokens)])
    for page, parts in zip((2, 4), expected, strict=True):
        assert all(torch.equal(got, part) for got, part in zip(parts_of(pages, page), parts, strict=True))
    assert all(torch.equal(pages.blob(page), blob) for page, blob in zip((0, 1, 3), others, strict=True))

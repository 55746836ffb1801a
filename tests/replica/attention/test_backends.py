"""Every attention backend against a dense reference, on ragged batches over scattered pages (A9, A10, A46)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from replica.attention.backend import AttentionBackend, BatchLayout, LayerOptions
from replica.attention.pages import KVPages, LayerShape
from replica.model.backend_choice import BACKENDS

# (tokens in the pages already, new tokens): fresh prefills, continued chunks and decodes, short and long, mixed.
BATCHES = {
    "one token": [(0, 1)],
    "a chunk that continues": [(23, 18)],
    "decodes": [(5, 1), (64, 1), (0, 1), (31, 1)],
    "A9: long fresh prefill, continuation, decode": [(0, 70), (48, 5), (33, 1)],
    "A10: everything": [(16, 16), (90, 1), (0, 3), (1, 1), (15, 2), (0, 64), (63, 1)],
}
OPTIONS = {
    "plain": LayerOptions(scaling=0.3),
    "window": LayerOptions(scaling=0.3, sliding_window=8),
    "window of one": LayerOptions(scaling=0.3, sliding_window=1),
    "window beyond all": LayerOptions(scaling=0.3, sliding_window=4096),
    "softcap": LayerOptions(scaling=0.7, softcap=1.5),
    "window and softcap": LayerOptions(scaling=0.7, sliding_window=13, softcap=2.0),
}


@dataclass(frozen=True)
class Heads:
    query: int = 4
    kv: int = 2
    key_dim: int = 16
    value_dim: int = 16


HEADS = {
    "grouped": Heads(),
    "one each": Heads(3, 3),
    "one for all": Heads(5, 1, 32, 32),
    "9 over 3": Heads(9, 3, 64, 64),
    "odd size": Heads(2, 1, 20, 20),
    "keys longer than values": Heads(4, 4, 24, 12),
}


@dataclass(frozen=True)
class Batch:
    """K and V of each request in order, and the same scattered over pages whose unused slots are NaN."""

    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    layout: BatchLayout

    @property
    def pages(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.key_pages, self.value_pages


_TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}


@dataclass(frozen=True)
class Place:
    """A backend, where it runs, and the numbers it computes with."""

    backend: type[AttentionBackend]
    device: str
    dtype: torch.dtype

    def attend(self, batch: Batch, options: LayerOptions, layout: BatchLayout | None = None) -> torch.Tensor:
        query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)  # strided, as models hand it over
        layout = layout or batch.layout
        return self.backend().attend(query, batch.key_pages, batch.value_pages, layout, options)

    def check(self, output: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(output.float(), expected.float(), **_TOLERANCE[self.dtype])


def make_batch(place: Place, requests: list[tuple[int, int]], heads: Heads, pages: int) -> Batch:
    """pages: tokens of a page, in the smallest pages that the backend takes."""
    page_size, device = pages * place.backend.page_size_multiple(), place.device
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, place.dtype)

    num_new = [new for _, new in requests]
    lengths = [old + new for old, new in requests]
    tables_size = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(tables_size) + 3, generator=generator).to(device)  # three pages belong to nobody
    tables = order[: sum(tables_size)].split(tables_size)
    keys = [normal(length, heads.kv, heads.key_dim) for length in lengths]
    values = [normal(length, heads.kv, heads.value_dim) for length in lengths]
    shape = (len(order), page_size, heads.kv)
    key_pages, value_pages = (
        torch.full((*shape, size), float("nan"), device=device, dtype=place.dtype)
        for size in (heads.key_dim, heads.value_dim)
    )
    slots = []
    for table, key, value, (old, _) in zip(tables, keys, values, requests, strict=True):
        positions = torch.arange(len(key), device=device)
        own = table[positions // page_size] * page_size + positions % page_size
        key_pages.flatten(0, 1)[own], value_pages.flatten(0, 1)[own] = key, value
        slots.append(own[old:])
    starts = (0, *torch.tensor(num_new).cumsum(0).tolist())
    layout = BatchLayout(starts, tuple(lengths), tuple(tables), torch.cat(slots))
    query = normal(sum(num_new), heads.query, heads.key_dim)
    return Batch(query, keys, values, key_pages, value_pages, layout)


def in_blobs(batch: Batch) -> Batch:
    """The same pages as one of three layers of blobs, whose other layers are NaN."""
    num_pages, page_size, num_heads, key_dim = batch.key_pages.shape
    shape = LayerShape(num_heads, key_dim, batch.value_pages.shape[-1])
    others = LayerShape(1, 72, 40)
    dtype, device = batch.key_pages.dtype, batch.key_pages.device
    pages = KVPages([others, shape, others], num_pages, page_size, dtype, device)
    for i in (0, 2):
        for part in pages.layer(i):
            part.fill_(float("nan"))
    keys, values = pages.layer(1)
    keys.copy_(batch.key_pages), values.copy_(batch.value_pages)
    assert not keys.is_contiguous()
    return replace(batch, key_pages=keys, value_pages=values)


def dense_attention(batch: Batch, options: LayerOptions) -> torch.Tensor:
    """Position by position and in float64, as the formula says."""
    rows = []
    for i, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        queries = batch.query[batch.layout.query_starts[i] : batch.layout.query_starts[i + 1]].double()
        group = queries.shape[1] // keys.shape[1]
        keys = keys.double().repeat_interleave(group, dim=1)
        values = values.double().repeat_interleave(group, dim=1)
        for offset, query in enumerate(queries):
            end = len(keys) - len(queries) + offset + 1
            start = 0 if options.sliding_window is None else max(0, end - options.sliding_window)
            scores = torch.einsum("hd,thd->ht", query, keys[start:end]) * options.scaling
            if options.softcap is not None:
                scores = options.softcap * torch.tanh(scores / options.softcap)
            rows.append(torch.einsum("ht,thd->hd", scores.softmax(dim=-1), values[start:end]))
    return torch.stack(rows).float()


def places() -> Iterator[object]:
    """Every backend on every device where it can run, in float32 where it can."""
    for name, backend in BACKENDS.items():
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            for dtype in _TOLERANCE:
                if backend.unavailable_because(torch.device(device), dtype) is None:
                    yield pytest.param(Place(backend, device, dtype), id=f"{name}-{device}")
                    break


every_backend = pytest.mark.parametrize("place", list(places()))


@every_backend
@pytest.mark.parametrize("pages", [1, 3, 16, 64])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
def test_equals_the_dense_reference(
    place: Place, pages: int, heads: Heads, options: LayerOptions, requests: list[tuple[int, int]]
) -> None:
    batch = make_batch(place, requests, heads, pages)
    place.check(place.attend(batch, options), dense_attention(batch, options))


@every_backend
def test_a_request_does_not_see_its_neighbours(place: Place) -> None:
    """The same requests together, and each in a batch in which everything else has become NaN."""
    batch = make_batch(place, BATCHES["A10: everything"], Heads(), 16)
    together = place.attend(batch, OPTIONS["plain"])
    for i, table in enumerate(batch.layout.page_tables):
        rows = slice(batch.layout.query_starts[i], batch.layout.query_starts[i + 1])
        query, keys, values = (torch.full_like(t, float("nan")) for t in (batch.query, *batch.pages))
        query[rows], keys[table], values[table] = batch.query[rows], batch.key_pages[table], batch.value_pages[table]
        alone = replace(batch, query=query, key_pages=keys, value_pages=values)
        place.check(place.attend(alone, OPTIONS["plain"])[rows], together[rows])


@every_backend
def test_requests_may_share_pages(place: Place) -> None:
    """A prefix hit: two requests read the first page of a third one."""
    page_size = 8 * place.backend.page_size_multiple()
    batch = make_batch(place, [(0, page_size + page_size // 2)] * 3, Heads(), 8)
    first = batch.layout.page_tables[0][:1]
    tables = tuple(torch.cat([first, table[1:]]) for table in batch.layout.page_tables)
    shared = replace(
        batch,
        keys=[torch.cat([batch.keys[0][:page_size], keys[page_size:]]) for keys in batch.keys],
        values=[torch.cat([batch.values[0][:page_size], values[page_size:]]) for values in batch.values],
        layout=replace(batch.layout, page_tables=tables),
    )
    place.check(place.attend(shared, OPTIONS["plain"]), dense_attention(shared, OPTIONS["plain"]))


@every_backend
@pytest.mark.parametrize("size", [1e-20, 20.0, 1e9])
def test_scores_of_any_size(place: Place, size: float) -> None:
    """Nothing overflows where one key outweighs all others, and nothing is lost where all weigh the same."""
    batch = make_batch(place, BATCHES["A9: long fresh prefill, continuation, decode"], Heads(), 16)
    batch.query.mul_(size)
    output = place.attend(batch, OPTIONS["plain"])
    assert output.isfinite().all()
    if size < 1e9:  # beyond, rounding of the scores themselves decides
        place.check(output, dense_attention(batch, OPTIONS["plain"]))


@every_backend
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["window and softcap"]], ids=["plain", "window, softcap"])
@pytest.mark.parametrize("pages", [1, 7, 16])
def test_pages_of_all_layers_in_one_blob_give_the_bits_of_packed_pages(
    place: Place, heads: Heads, options: LayerOptions, pages: int
) -> None:
    """Across the borders of tiles and of the parts that threads share."""
    batch = make_batch(place, [*BATCHES["A10: everything"], (700, 1), (250, 70)], heads, pages)
    assert torch.equal(place.attend(in_blobs(batch), options), place.attend(batch, options))


@every_backend
def test_cut_into_chunks_it_is_the_same(place: Place) -> None:
    batch = make_batch(place, [(0, 50)], Heads(), 4)
    options, parts = OPTIONS["window and softcap"], []
    for start, end in ((0, 1), (1, 8), (8, 24), (24, 49), (49, 50)):
        # The later tokens are in the pages already and must not be seen.
        layout = BatchLayout((0, end - start), (end,), batch.layout.page_tables, batch.layout.slots[start:end])
        parts.append(place.attend(replace(batch, query=batch.query[start:end]), options, layout))
    place.check(torch.cat(parts), place.attend(batch, options))


def test_the_reference_backend_runs_everywhere() -> None:
    assert any(parameter.id == "torch-cpu" for parameter in places())

"""The CUDA attention backends at the sizes of real models, against the dense reference; no row stays unwritten."""

from collections.abc import Iterator

import pytest
import torch

from replica.attention.backend import AttentionBackend, LayerOptions
from replica.model.backend_choice import BACKENDS
from tests.replica.attention.test_backends import BATCHES, Heads, Place, dense_attention, make_batch

HEADS = {"9 over 3": Heads(9, 3, 64, 64), "8 over 2": Heads(8, 2, 128, 128), "4 over 1": Heads(4, 1, 256, 256)}
OPTIONS = {
    "plain": LayerOptions(scaling=0.1),
    "window": LayerOptions(scaling=0.1, sliding_window=13),
    "softcap": LayerOptions(scaling=0.1, softcap=20.0),
}


def places() -> Iterator[object]:
    for name, backend in BACKENDS.items():
        if name != "native":
            yield pytest.param(Place(backend, "cuda", torch.bfloat16), id=name)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.param
    reason = found.backend.unavailable_because(torch.device("cuda"), torch.bfloat16)
    if reason is not None:
        pytest.skip(f"{found.backend.name}: {reason}")
    return found


every_backend = pytest.mark.parametrize("place", list(places()), indirect=True)


@every_backend
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
def test_equals_the_dense_reference(
    place: Place, heads: Heads, options: LayerOptions, requests: list[tuple[int, int]]
) -> None:
    if options.softcap is not None and place.backend.name == "varlen":
        pytest.skip("torch's varlen kernel has no softcap")
    batch = make_batch(place, requests, heads, 1)
    place.check(place.attend(batch, options), dense_attention(batch, options))


@every_backend
def test_a46_every_row_is_written(place: Place) -> None:
    """Ragged requests over several pages; freed memory that the output may get is filled with NaN first."""
    page_size = place.backend.page_size_multiple()
    batch = make_batch(place, [(3 * page_size, 7), (5, 40), (2 * page_size + 1, 1), (0, 1)], Heads(9, 3, 64, 64), 1)
    torch.full_like(batch.query, float("nan"))
    output = place.attend(batch, OPTIONS["plain"])
    assert output.isfinite().all()
    place.check(output, dense_attention(batch, OPTIONS["plain"]))


@every_backend
def test_a_decode_step_can_be_captured_in_a_graph(place: Place) -> None:
    """Replayed over other keys, values and queries it gives what the backend gives there directly."""
    if place.backend.name == "torch":
        pytest.skip("it gathers pages by lengths that it reads on the host")
    batch = make_batch(place, [(70, 1), (300, 1), (5, 1), (1, 1)], Heads(9, 3, 64, 64), 1)
    backend: AttentionBackend = place.backend()

    def attend() -> torch.Tensor:
        return backend.attend(batch.query, batch.key_pages, batch.value_pages, batch.layout, OPTIONS["plain"])

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):  # kernels load and the layout moves to the device before the capture
            attend()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend()
    for tensor in (batch.query, batch.key_pages, batch.value_pages):
        tensor.copy_(torch.randn_like(tensor))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(captured, attend(), rtol=0.0, atol=0.0)

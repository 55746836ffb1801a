"""Every constant by which the kernels cut their work is crossed by every family, every probe, and in mixed batches.

Gemma 2 and 3 were wrong from 257 tokens of context on: no test and no probe of them had more than 203.
"""

import copy
import re
from importlib import resources
from itertools import zip_longest

import pytest
import torch

from replica.attention.backend import AttentionBackend, LayerOptions
from replica.attention.torch_backend import TorchAttention
from replica.errors import UnsupportedModel
from replica.kernels.fused_decoder import FusedDecoder
from replica.kernels.native_backend import NativeAttention
from replica.kernels.native_library import kernel_constants, native_unavailable_because
from replica.kernels.packed_weight import PackedWeight
from replica.model.fast_path import Forward, fastest_forward
from replica.model.invariance_probe import verify_invariant
from replica.model.paged_probe import PagedProbe, layout_of
from replica.model.probe import witness_layers
from replica.model.probe_spans import MAX_PROBE_TOKENS, across_keys, across_rows, around
from tests.replica.paged_requests import Requests
from tests.replica.tiny_models import FAMILIES, FUSED, SLIDING_WINDOW, VOCAB_SIZE, random_model, tiny_config

pytestmark = pytest.mark.skipif(
    native_unavailable_because() is not None, reason=f"no native kernels: {native_unavailable_because()}"
)
WINDOW = 700
"""Of the models here: beyond twice the largest border of keys."""
NO_BORDER = {"SPINS", "INLINE"}
"""What the sources define and no work is cut by."""
CONSTANTS = kernel_constants() if native_unavailable_because() is None else {"keys": {}, "rows": {}, "columns": {}}
KEYS, ROWS, COLUMNS = (sorted(set(CONSTANTS[of].values())) for of in ("keys", "rows", "columns"))


def test_the_library_tells_every_constant_of_its_sources() -> None:
    """So a constant that is added later is crossed too, or this fails."""
    defined = set()
    for path in (resources.files("replica.kernels") / "csrc").iterdir():
        source = path.read_text()
        defined |= set(re.findall(r"^ *# *define (\w+) +\S", source, re.MULTILINE))
        defined |= set(re.findall(r"^ *static const \w+ (\w+) =", source, re.MULTILINE))
    assert defined - NO_BORDER == {name for of in CONSTANTS.values() for name in of}
    assert set(CONSTANTS) == {"keys", "rows", "columns", "floats"}


def test_spans_reach_both_sides_of_each_border_and_twice() -> None:
    assert around([64, 3], 130) == [2, 3, 4, 6, 63, 64, 65, 128]
    ends = [end for _, end in across_keys([64, 256], 1000)]
    assert ends == [63, 64, 65, 128, 255, 256, 257, 512, 513]
    assert across_keys([4, 64], 100) == [(0, 3), (3, 4), (4, 5), (5, 8), (8, 9)], "what does not fit twice is left out"
    assert [end - start for start, end in across_rows([8, 4], 60)] == [3, 4, 5, 7, 8, 9, 16]


def test_the_probe_crosses_each_border_of_keys_and_the_small_ones_of_rows() -> None:
    model = random_model(tiny_config("Llama", max_position_embeddings=WINDOW))
    probe = PagedProbe(model, witness_layers(model, VOCAB_SIZE), NativeAttention(), 16, VOCAB_SIZE, WINDOW)
    contexts, chunks = probe._spans
    ends = {end for _, end in contexts}
    assert set(around([*KEYS, 16], WINDOW)) <= ends
    assert {end for border in KEYS for end in (border, border + 1)} <= {e for start, e in contexts if e - start == 1}
    assert set(around([rows for rows in ROWS if rows <= 24], WINDOW)) <= {end - start for start, end in chunks}
    for spans, kept in zip(probe._spans, probe._kept, strict=True):
        assert {end - 1 for _, end in spans} | {start for start, _ in spans} <= set(kept)
    assert 2 * max(KEYS) < MAX_PROBE_TOKENS


@pytest.mark.parametrize("which", [0, 1])
def test_the_probe_refuses_what_is_no_number_in_either_request(which: int) -> None:
    """Python's max of (0.1, nan) is 0.1."""
    model = random_model(tiny_config("Llama", max_position_embeddings=WINDOW))
    shapes, backend = witness_layers(model, VOCAB_SIZE), NativeAttention()
    forward, _ = fastest_forward(model, shapes, backend, 16, VOCAB_SIZE, WINDOW)
    probe = PagedProbe(model, shapes, backend, 16, VOCAB_SIZE, WINDOW)
    probe.verify(forward)
    own = probe._compute(forward)
    own[which][-1, 3] = float("nan")
    probe._compute = lambda forward: own  # type: ignore[method-assign]
    with pytest.raises(UnsupportedModel, match="difference nan"):
        probe.verify(forward)


class WrongBeyond:
    """A forward pass whose logits are slightly wrong for single queries over more than so many keys."""

    def __init__(self, forward: Forward, num_keys: int):
        self._forward, self._num_keys = forward, num_keys
        self.device, self.dtype = forward.device, forward.dtype

    def forward(self, input_ids, position_ids, paged_step, logits_to_keep=None, past_key_values=None):  # type: ignore[no-untyped-def]
        output = self._forward(
            input_ids=input_ids, position_ids=position_ids, paged_step=paged_step, logits_to_keep=logits_to_keep
        )
        starts, lengths = paged_step.layout.query_starts, paged_step.layout.context_lens
        for i, length in enumerate(lengths):
            if starts[i + 1] - starts[i] == 1 and length > self._num_keys:
                kept = slice(None) if logits_to_keep is None else logits_to_keep == starts[i]
                output.logits[0][kept] += 0.05
        return output

    __call__ = forward


@pytest.mark.parametrize("border", KEYS)
def test_both_probes_find_what_is_wrong_on_one_side_of_a_border(border: int) -> None:
    """The probes of 24 and 61 tokens that were there before found neither."""
    model = random_model(tiny_config("Gemma3", max_position_embeddings=WINDOW))
    shapes, backend = witness_layers(model, VOCAB_SIZE), NativeAttention()
    forward, _ = fastest_forward(model, shapes, backend, 16, VOCAB_SIZE, WINDOW)
    wrong = WrongBeyond(forward, border)
    with pytest.raises(UnsupportedModel, match="other logits than the model itself"):
        PagedProbe(model, shapes, backend, 16, VOCAB_SIZE, WINDOW).verify(wrong)
    with pytest.raises(UnsupportedModel, match="last bits"):
        verify_invariant(wrong, shapes, backend, 16, VOCAB_SIZE, WINDOW)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_are_the_models_own_on_both_sides_of_every_border(family: str, deterministic: bool) -> None:
    """One context that grows across the borders of keys, windows and pages, beside chunks that cross those of rows."""
    model = random_model(tiny_config(family, max_position_embeddings=WINDOW))
    eager = copy.deepcopy(model)
    shapes, backend = witness_layers(model, VOCAB_SIZE), NativeAttention()
    forward, _ = fastest_forward(model, shapes, backend, 16, VOCAB_SIZE, WINDOW, deterministic=deterministic)
    assert isinstance(forward, FusedDecoder) == (family in FUSED), "a faster pass was refused by a probe"
    steps = [
        across_keys([*KEYS, 16, SLIDING_WINDOW], WINDOW),
        across_rows(ROWS, WINDOW),
        across_rows([rows for rows in ROWS if rows > 24], WINDOW),
    ]
    prompts = [[(7919 + i) * t % VOCAB_SIZE for t in range(spans[-1][1])] for i, spans in enumerate(steps)]
    requests = Requests(forward, model, prompts, page_size=16)
    for spans in zip_longest(*steps):
        requests.step({i: span[1] - span[0] for i, span in enumerate(spans) if span is not None})
    for prompt, logits in zip(prompts, requests.logits, strict=True):
        with torch.inference_mode():
            expected = eager(torch.tensor([prompt]), use_cache=False).logits[0]
        torch.testing.assert_close(torch.stack(logits), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Gemma3", "Olmo2"])
def test_bits_are_the_same_on_both_sides_of_every_border(family: str) -> None:
    """Computed alone up to each length around a border, against one prompt computed whole."""
    model = random_model(tiny_config(family, max_position_embeddings=WINDOW))
    forward, _ = fastest_forward(model, witness_layers(model, VOCAB_SIZE), NativeAttention(), 16, VOCAB_SIZE, WINDOW)
    spans = across_keys(KEYS, WINDOW)
    prompt = [t * 104729 % VOCAB_SIZE for t in range(spans[-1][1])]
    cut, whole = (Requests(forward, model, [prompt], page_size=16) for _ in range(2))
    for start, end in spans:
        cut.step({0: end - start})
    whole.step({0: len(prompt)})
    assert torch.equal(torch.stack(cut.logits[0]), torch.stack(whole.logits[0]))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("of", ["query", "key", "value"])
@pytest.mark.parametrize("length", [1, *around(KEYS, 600)])
def test_what_is_not_finite_is_not_swallowed(number: float, of: str, length: int) -> None:
    """The guard against such logits sees only what attention lets through: the last token alone, then with others."""
    torch.manual_seed(length)
    tensors = {name: torch.randn(length, heads, 8) for name, heads in (("query", 4), ("key", 2), ("value", 2))}
    tensors[of][length - 1] = number
    for num_queries in (1, min(length, 5)):
        for softcap in (None, 20.0) if number != number else (None,):  # a softcap makes a number of infinity
            by_torch, by_native = (
                attended(backend, tensors, num_queries, softcap).isfinite()
                for backend in (TorchAttention(), NativeAttention())
            )
            assert not by_torch[-1].any() and not by_native[-1].any()
            assert of == "value" or by_native[:-1].all(), "a query that does not see the token is not touched"


def attended(
    backend: AttentionBackend, tensors: dict[str, torch.Tensor], num_queries: int, softcap: float | None
) -> torch.Tensor:
    """The last so many queries over keys and values in pages of 16."""
    length = len(tensors["key"])
    pages = -(-length // 16)
    keys, values = (torch.zeros(pages, 16, 2, 8) for _ in range(2))
    keys.view(-1, 2, 8)[:length], values.view(-1, 2, 8)[:length] = tensors["key"], tensors["value"]
    layout, _ = layout_of([torch.arange(pages)], [(length - num_queries, length)], 16)
    return backend.attend(tensors["query"][-num_queries:], keys, values, layout, LayerOptions(0.35, None, softcap))


@pytest.mark.parametrize("rows", around(ROWS, 300))
def test_products_on_both_sides_of_every_border_of_rows(rows: int) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(70, 100), torch.randn(rows, 100)
    expected = torch.nn.functional.linear(x.double(), weight.double()).float()
    torch.testing.assert_close(PackedWeight([weight], [None])(x), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("width", around(COLUMNS, 1300))
def test_products_on_both_sides_of_every_border_of_columns(width: int) -> None:
    torch.manual_seed(width)
    for n, k in ((width, 33), (17, width)):
        weight, x = torch.randn(n, k), torch.randn(7, k)
        expected = torch.nn.functional.linear(x.double(), weight.double()).float()
        torch.testing.assert_close(PackedWeight([weight], [None])(x), expected, rtol=1e-5, atol=1e-5 * k**0.5)

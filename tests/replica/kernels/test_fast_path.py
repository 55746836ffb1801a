"""The native forward pass: which one a model gets, that it is right, and that its bits depend on nothing else."""

import copy
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from replica.attention.backend import AttentionBackend
from replica.attention.torch_backend import TorchAttention
from replica.kernels import native_library
from replica.kernels.fused_decoder import FusedDecoder
from replica.kernels.native_backend import NativeAttention
from replica.kernels.native_library import NativeUnavailable, load_native, native_unavailable_because
from replica.kernels.packed_linear import PackedLinear, with_packed_linears
from replica.kernels.packed_weight import PackedWeight
from replica.model.backend_choice import backend_candidates
from replica.model.fast_path import Forward, fastest_forward
from replica.model.probe import witness_layers
from tests.replica.paged_requests import Requests
from tests.replica.tiny_models import FAMILIES, FUSED, VOCAB_SIZE, WINDOW, tiny_engine, tiny_model

native = pytest.mark.skipif(
    native_unavailable_because() is not None, reason=f"no native kernels: {native_unavailable_because()}"
)


def fastest(model: PreTrainedModel, backend: AttentionBackend | None = None, page_size: int = 16) -> Forward:
    shapes = witness_layers(model, VOCAB_SIZE)
    return fastest_forward(model, shapes, backend or NativeAttention(), page_size, VOCAB_SIZE, WINDOW)[0]


def is_packed(forward: Forward) -> bool:
    return isinstance(forward, torch.nn.Module) and any(isinstance(part, PackedLinear) for part in forward.modules())


@native
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_family_gets_the_fastest_pass_that_gives_its_logits(family: str) -> None:
    forward = fastest(tiny_model(family))
    assert isinstance(forward, FusedDecoder) == (family in FUSED)
    assert family in FUSED or is_packed(forward)


@native
def test_another_attention_backend_gets_the_model_itself() -> None:
    model = tiny_model("Llama")
    assert fastest(model, TorchAttention()) is model


@native
@pytest.mark.parametrize("family", sorted(FUSED))
def test_fused_logits_are_the_models_own_far_beyond_the_window(family: str) -> None:
    """150 tokens: 19 sliding windows and 10 pages, three key tiles of the kernel."""
    model = tiny_model(family)
    ids = [i * 7919 % VOCAB_SIZE for i in range(150)]
    requests = Requests(fastest(model), model, [ids], page_size=16)
    requests.step({0: 90})
    requests.step({0: 60})
    eager = copy.copy(model)
    eager.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = eager(torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(torch.stack(requests.logits[0]), expected, rtol=1e-3, atol=1e-3)


@native
@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Gemma3", "Mistral"])
@pytest.mark.parametrize("seed", range(3))
def test_bits_depend_on_the_request_alone(family: str, seed: int) -> None:
    """Each prompt alone and whole against all of them in random chunks, other pages and another number of threads."""
    rng = random.Random(seed)
    model = tiny_model(family)
    forward = fastest(model)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 200))] for _ in range(5)]
    mixed = Requests(forward, model, prompts, page_size=4)
    threads = torch.get_num_threads()
    try:
        while left := [i for i, prompt in enumerate(prompts) if mixed.num_computed[i] < len(prompt)]:
            torch.set_num_threads(rng.choice([1, 2, 3]))
            chosen = rng.sample(left, rng.randint(1, len(left)))
            mixed.step({i: rng.randint(1, min(70, len(prompts[i]) - mixed.num_computed[i])) for i in chosen})
    finally:
        torch.set_num_threads(threads)
    for prompt, logits in zip(prompts, mixed.logits, strict=True):
        alone = Requests(forward, model, [prompt], page_size=16)
        alone.step({0: len(prompt)})
        assert torch.equal(torch.stack(logits), torch.stack(alone.logits[0]))


@native
def test_what_differs_only_far_from_the_start_is_found() -> None:
    """A model whose layers scale attention by position, as some do beyond their training length."""
    model = copy.deepcopy(tiny_model("Llama"))
    projection = model.model.layers[0].mlp.down_proj

    def scaled_far_out(module: Any, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
        far = kwargs["position_ids"][0] >= WINDOW // 2
        return torch.where(far[None, :, None], 1.5 * output, output)

    model.model.layers[0].register_forward_hook(scaled_far_out, with_kwargs=True)
    assert not isinstance(fastest(model), FusedDecoder)
    assert model.model.layers[0].mlp.down_proj is projection, "the model given must stay as it is"


@native
def test_what_runs_is_told_with_the_reason() -> None:
    """On the start page, in the metrics and in the log."""
    assert str(tiny_engine("Llama").forward_pass) == "the fused decoder, native attention on cpu"
    passed_over = tiny_engine("Olmo2").forward_pass
    assert passed_over is not None and passed_over.path == "packed_linears" and not passed_over.is_slow
    assert passed_over.reason.startswith("the fused decoder: ")


def test_a_slow_pass_warns_and_says_why(fresh_load: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fresh_load.setenv("PATH", "")
    with caplog.at_level(logging.WARNING):
        chosen = tiny_engine("Llama").forward_pass
    assert chosen is not None and chosen.is_slow
    assert chosen.reason == "native attention: there is no C compiler (cc, gcc or clang) on PATH"
    assert str(chosen) == f"the model's own layers, torch attention on cpu ({chosen.reason})"
    assert str(chosen) in caplog.text


@native
def test_packing_leaves_the_model_as_it_was() -> None:
    model = tiny_model("Olmo2")
    packed = with_packed_linears(model)
    assert is_packed(packed)
    assert not any(isinstance(part, PackedLinear) for part in model.modules())


@native
@pytest.mark.parametrize(("n", "k"), [(1, 1), (15, 7), (48, 48), (100, 33), (576, 1536), (70, 4100)])
@pytest.mark.parametrize("m", [1, 2, 5, 6, 7, 13, 50, 150])
def test_packed_weight_multiplies(n: int, k: int, m: int) -> None:
    torch.manual_seed(n * k + m)
    weight, bias, x = torch.randn(n, k), torch.randn(n), torch.randn(m, k)
    got = PackedWeight([weight], [bias])(x)
    expected = torch.nn.functional.linear(x.double(), weight.double(), bias.double()).float()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5 * k**0.5)  # the sums are of order sqrt(k)
    for row in (0, m // 2, m - 1):
        assert torch.equal(PackedWeight([weight], [bias])(x[row : row + 1])[0], got[row])


@native
@pytest.mark.parametrize("width", [1, 8, 20, 1536])
def test_gate_and_up_are_one_pass(width: int) -> None:
    torch.manual_seed(width)
    gate, up, x = torch.randn(width, 40), torch.randn(width, 40), torch.randn(3, 7, 40)
    expected = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(PackedWeight([gate, up], [None, None], "silu")(x), expected, rtol=1e-4, atol=1e-4)
    expected = torch.nn.functional.gelu(x @ gate.T, approximate="tanh") * (x @ up.T)
    torch.testing.assert_close(PackedWeight([gate, up], [None, None], "gelu_tanh")(x), expected, rtol=1e-4, atol=1e-4)


def test_weights_that_read_different_inputs_do_not_pack() -> None:
    with pytest.raises(ValueError, match="do not read one input"):
        PackedWeight([torch.empty(4, 3), torch.empty(4, 5)], [None, None])
    with pytest.raises(ValueError, match="two equal weights"):
        PackedWeight([torch.empty(4, 3)], [None], "silu")


@pytest.fixture
def fresh_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`load_native` as in a new process with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    load_native.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    load_native.cache_clear()


def test_without_a_compiler_torch_serves(fresh_load: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fresh_load.setenv("PATH", "")
    with pytest.raises(NativeUnavailable, match="no C compiler"):
        load_native()
    with caplog.at_level(logging.INFO):
        (backend, _), *_ = backend_candidates("auto", torch.device("cpu"), torch.float32, 16)
    assert isinstance(backend, TorchAttention)
    assert "no C compiler" in caplog.text


def test_switched_off_by_the_environment(fresh_load: pytest.MonkeyPatch) -> None:
    fresh_load.setenv("WARMLANE_NATIVE_KERNELS", "0")
    assert "WARMLANE_NATIVE_KERNELS" in (NativeAttention.unavailable_because(torch.device("cpu"), torch.float32) or "")


@native
def test_compiled_once_per_machine(fresh_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_native()
    compiled = list((tmp_path / "warmlane" / "native").iterdir())
    assert len(compiled) == 1, "the library alone, no leftovers"
    load_native.cache_clear()
    fresh_load.setattr(native_library, "_compile", lambda *args: pytest.fail("compiled again"))
    load_native()


def test_a_broken_compiler_is_named(fresh_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    fresh_load.setenv("CC", str(compiler))
    with pytest.raises(NativeUnavailable, match="no space left"):
        load_native()


@native
def test_a_compiler_that_is_no_program_is_named(fresh_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Starting it raises, which is no reason not to serve."""
    compiler = tmp_path / "cc"
    compiler.write_bytes(b"\x7fELF and nothing else")
    compiler.chmod(0o755)
    fresh_load.setenv("CC", str(compiler))
    assert f"{compiler} does not run" in (native_unavailable_because() or "")


def test_cc_that_is_not_there_is_named(fresh_load: pytest.MonkeyPatch) -> None:
    fresh_load.setenv("CC", "x86_64-nowhere-cc -m64")
    with pytest.raises(NativeUnavailable, match="no C compiler x86_64-nowhere-cc, which CC names"):
        load_native()


@pytest.mark.parametrize(("cc", "cause"), [("gcc 'x", "CC cannot be read"), ("true", "wrote no library")])
def test_an_odd_cc_is_named(fresh_load: pytest.MonkeyPatch, cc: str, cause: str) -> None:
    fresh_load.setenv("CC", cc)
    with pytest.raises(NativeUnavailable, match=cause):
        load_native()


@native
def test_cc_may_hold_arguments(fresh_load: pytest.MonkeyPatch) -> None:
    """As for a compiler behind ccache."""
    fresh_load.setenv("CC", "env cc -g0")
    load_native()


@native
def test_a_library_that_is_there_already_is_taken_before_one_is_compiled(
    fresh_load: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What lies in a folder of a disk mounted noexec never loads: it must not be compiled at each start."""
    fresh_load.setenv("HOME", str(tmp_path / "home"))
    load_native()
    (compiled,) = (tmp_path / "warmlane" / "native").iterdir()
    other = tmp_path / "home" / ".cache" / "warmlane" / "native"
    other.mkdir(parents=True)
    shutil.copy(compiled, other)
    compiled.unlink()  # a file of its own: this process has the other one mapped
    compiled.write_bytes(b"")
    load_native.cache_clear()
    fresh_load.setattr(native_library, "_compile", lambda *args: pytest.fail("compiled again"))
    load_native()


def test_a_folder_that_does_not_do_is_replaced_by_the_next(fresh_load: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file is in the way in the first folder; the library goes into the home's."""
    fresh_load.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "warmlane").mkdir()
    (tmp_path / "warmlane" / "native").write_text("")
    load_native()
    assert len(list((tmp_path / "home" / ".cache" / "warmlane" / "native").iterdir())) == 1


def in_a_process_of_its_own(code: str, **environment: str) -> None:
    """A process keeps the library that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if "omp.h" in done.stderr:
        pytest.skip("clang has no OpenMP here (Debian and Ubuntu: libomp-dev)")
    assert done.returncode == 0, done.stderr


@native
@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_broken_library_is_compiled_again(tmp_path: Path, content: bytes) -> None:
    load = "from replica.kernels.native_library import load_native; load_native()"
    in_a_process_of_its_own(load, XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    (compiled,) = (tmp_path / "warmlane" / "native").iterdir()
    size = compiled.stat().st_size
    compiled.write_bytes(content)
    in_a_process_of_its_own(load, XDG_CACHE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert compiled.stat().st_size == size


@native
@pytest.mark.parametrize("compiler", ["gcc-9", "gcc-10", "gcc-11", "gcc-12", "gcc-13", "gcc-14", "clang"])
def test_compiles_and_computes_with_each_compiler_that_is_here(tmp_path: Path, compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    code = (
        "import torch; from replica.kernels.packed_weight import PackedWeight\n"
        "torch.manual_seed(0); w, x = torch.randn(50, 70), torch.randn(9, 70)\n"
        "torch.testing.assert_close(PackedWeight([w], [None])(x), x @ w.T, rtol=1e-4, atol=1e-4)"
    )
    in_a_process_of_its_own(code, CC=compiler, XDG_CACHE_HOME=str(tmp_path))

"""From a model folder to a model, its tokenizer, its window and the tokens that end an answer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.factory import build_engine
from replica.model.loader import load_model
from tests.replica.tiny_models import (
    EOS_ID,
    VOCAB_SIZE,
    WINDOW,
    answered_prompt,
    byte_tokenizer,
    greedy,
    random_model,
    reference_model,
    run,
    tiny_config,
)


def save(folder: Path, dtype: torch.dtype = torch.float32, eos_token_id: int | list[int] | None = EOS_ID) -> Path:
    """The weights of `reference_model("Llama")` as a checkpoint."""
    model = random_model(tiny_config("Llama")).to(dtype)
    model.generation_config = GenerationConfig(eos_token_id=eos_token_id)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<|user|>").save_pretrained(folder)
    return folder


def load(folder: Path, **config: Any) -> Any:
    return load_model(EngineConfig(model=str(folder), device="cpu", **config))


def test_a_folder_becomes_an_engine_that_answers_like_the_model(tmp_path: Path) -> None:
    prompt, answer = answered_prompt(reference_model("Llama"), 21, 6)
    config = EngineConfig(model=str(save(tmp_path)), device="cpu", block_size=4, num_blocks=32)
    engine = build_engine(config, BlockHasher(b"0123456789abcdef", "tiny", 4))
    assert [run(engine, [greedy(prompt, 6)]) for _ in range(2)] == [[answer]] * 2
    assert engine.counters.num_hit_tokens == 20


def test_what_is_read_from_the_folder(tmp_path: Path) -> None:
    loaded = load(save(tmp_path))
    assert (loaded.vocab_size, loaded.max_model_len, loaded.device.type) == (VOCAB_SIZE, WINDOW, "cpu")
    assert loaded.tokenizer.encode("aé").ids == list("aé".encode())
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


@pytest.mark.parametrize(
    ("declared", "expected"), [(EOS_ID, {256, 258}), ([256, 257], {256, 257, 258}), (None, {258})], ids=str
)
def test_every_declared_end_counts(declared: int | list[int] | None, expected: set[int], tmp_path: Path) -> None:
    """The generation config's, one or several, and the tokenizer's own: instruction models name different ones."""
    assert load(save(tmp_path, eos_token_id=declared)).eos_token_ids == expected


def test_without_a_generation_config_the_models_config_is_asked(tmp_path: Path) -> None:
    (save(tmp_path) / "generation_config.json").unlink()
    assert load(tmp_path).eos_token_ids == {256, 258}


def test_dtype_is_float32_on_a_cpu_unless_named(tmp_path: Path) -> None:
    """A CPU without bf16 units computes bf16 several times slower than float32."""
    save(tmp_path, dtype=torch.bfloat16)
    assert load(tmp_path).dtype is torch.float32
    named = load(tmp_path, dtype="bfloat16")
    assert (named.dtype, named.model.dtype) == (torch.bfloat16, torch.bfloat16)


def test_the_window(tmp_path: Path) -> None:
    save(tmp_path)
    assert load(tmp_path, max_model_len=100).max_model_len == 100
    with pytest.raises(
        ValueError, match=f"max_model_len must be at most the model's window of {WINDOW} tokens, got 513"
    ):
        load(tmp_path, max_model_len=WINDOW + 1)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"holds no config\.json"):
        load(tmp_path)
    tiny_config("Llama").save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"model\.safetensors"):
        load(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device is cuda, but torch sees no GPU"):
        load_model(EngineConfig(model=str(save(tmp_path)), device="cuda"))

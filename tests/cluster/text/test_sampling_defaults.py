"""The model's own sampling defaults: read from its folder, used for what requests leave out, and never else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.api.generation_api import GenerationApi, ServedModel
from cluster.api.http_app import build_http_app
from cluster.api.limits import ApiLimits
from cluster.api.model_api import ModelApi
from cluster.api.prompt_reader import PromptReader
from cluster.config import ServeConfig
from cluster.serving.app import cluster_spec
from cluster.text.sampling_defaults import SamplingDefaults, read_sampling_defaults
from cluster.text.tokenization import ChatTokenizer
from replica.model.loader import _eos_token_ids
from replica.sampling_params import SamplingParams
from tests.cluster.scripted_engine import ScriptedEngine
from tests.cluster.text.small_tokenizer import write_small_tokenizer

QWEN = {
    "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05, "min_p": 0.01,
    "eos_token_id": [7, 9], "max_new_tokens": 2048, "transformers_version": "4.51.0",
}  # fmt: skip
DEFAULTS = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05, min_p=0.01)
NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def folder_with(folder: Path, told: Any) -> Path:
    (folder / "generation_config.json").write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


def test_what_the_file_tells(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == SamplingDefaults()
    assert read_sampling_defaults(folder_with(tmp_path, {"eos_token_id": 2, "top_k": None})) == SamplingDefaults()
    assert read_sampling_defaults(folder_with(tmp_path, QWEN)) == DEFAULTS
    assert str(DEFAULTS) == "temperature 0.7, top_p 0.8, top_k 20, min_p 0.01, repetition_penalty 1.05"
    assert read_sampling_defaults(folder_with(tmp_path, {"top_k": -1, "temperature": 0})).top_k == 0


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"temperature": 3}, "temperature in .* must be between 0 and 2, got 3; --ignore-generation-config"),
        ({"temperature": "1"}, "temperature in .* must be between 0 and 2, got '1'"),
        ({"temperature": True}, "temperature in"),
        ({"top_p": 0}, "top_p in .* must be above 0 and at most 1, got 0"),
        ({"top_k": 1.5}, "top_k in"),
        ({"min_p": 2}, "min_p in"),
        ({"repetition_penalty": 0}, "repetition_penalty in"),
        ("[1]", "must hold a JSON object; --ignore-generation-config"),
        ("{", "cannot be read: .*--ignore-generation-config"),
    ],
)
def test_what_no_request_may_have_is_refused_at_the_start(tmp_path: Path, told: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_sampling_defaults(folder_with(tmp_path, told))


def test_the_setting_leaves_the_file_out(tmp_path: Path) -> None:
    write_small_tokenizer(folder_with(tmp_path, QWEN))
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert cluster_spec(ServeConfig(), tmp_path).sampling_defaults == DEFAULTS
    assert cluster_spec(ServeConfig(ignore_generation_config=True), tmp_path).sampling_defaults == SamplingDefaults()


async def sampled(defaults: SamplingDefaults, folder: Path, path: str, **fields: Any) -> SamplingParams:
    """What the engine was asked for."""
    engine, limits = ScriptedEngine(), ApiLimits()
    model = ServedModel(
        name="small", fingerprint="f" * 32, max_model_len=256, created=1, sampling_defaults=defaults
    )  # fmt: skip
    reader = PromptReader(ChatTokenizer(str(write_small_tokenizer(folder))), 256, lambda seconds: None)
    generation = GenerationApi(model, reader, engine.open, limits, lambda error: None)
    app = build_http_app(generation, ModelApi(model, reader, limits), {}, lambda error: None)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://warmlane") as client:
        prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
        response = await client.post(path, json={"model": "small", **prompt, **fields})
        assert response.status_code == 200, response.text
    return engine.requests[0].sampling


def told_of(sampling: SamplingParams | SamplingDefaults) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in NAMES}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_they_hold_for_what_a_request_leaves_out(tmp_path: Path, path: str) -> None:
    assert told_of(await sampled(DEFAULTS, tmp_path, path)) == told_of(DEFAULTS)
    assert told_of(await sampled(DEFAULTS, tmp_path, path, **dict.fromkeys(NAMES))) == told_of(DEFAULTS)
    assert told_of(await sampled(SamplingDefaults(), tmp_path, path)) == {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0), ("temperature", 1.0), ("top_p", 1), ("top_k", 0), ("top_k", -1), ("top_k", 3), ("min_p", 0),
        ("repetition_penalty", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_a_request_says_wins(tmp_path: Path, path: str, field: str, value: float) -> None:
    sampling = await sampled(DEFAULTS, tmp_path, path, **{field: value})
    assert told_of(sampling) == {**told_of(DEFAULTS), field: max(0, value)}


class _Silent:
    eos_token_id = None


@pytest.mark.parametrize(("told", "ids"), [([7, 9], {7, 9}), (7, {7}), ([], set())], ids=str)
def test_every_end_of_text_of_the_file_ends_an_answer(tmp_path: Path, told: Any, ids: set[int]) -> None:
    """Whether or not its sampling is left out: what ends an answer is no matter of taste."""
    folder = folder_with(tmp_path, {**QWEN, "eos_token_id": told})
    assert _eos_token_ids(str(folder), _Silent(), _Silent()) == ids


def test_a_default_differs_only_where_it_is_named() -> None:
    assert str(SamplingDefaults()) == ""
    assert str(replace(SamplingDefaults(), top_k=5)) == "top_k 5"

from pathlib import Path

import pytest

from replica.errors import UnsupportedModel
from replica.model.footprint import ModelFootprint, model_footprint
from tests.replica.tiny_models import reference_model, tiny_config


def saved_config(family: str, folder: Path, **overrides: object) -> str:
    tiny_config(family, **overrides).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("family", "numbers_per_token"),
    [
        ("Llama", 2 * 2 * (12 + 12)),  # layers x K/V heads x (key + value)
        ("Gemma3", 6 * 1 * (16 + 16)),
        ("DeepseekV2", 2 * (16 + 8)),  # latents and one RoPE key
    ],
)
def test_a_config_alone_tells_the_cost(family: str, numbers_per_token: int, tmp_path: Path) -> None:
    cost = model_footprint(saved_config(family, tmp_path), "float16")
    assert cost.token_bytes == 2 * numbers_per_token
    assert cost.num_parameters == sum(parameter.numel() for parameter in reference_model(family).parameters())
    assert cost.weight_bytes == 2 * cost.num_parameters


def test_what_cannot_be_served_is_refused_here_too(tmp_path: Path) -> None:
    folder = saved_config("Llama", tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    with pytest.raises(UnsupportedModel, match="dynamic"):
        model_footprint(folder, "float32")


def test_a_request_takes_whole_pages() -> None:
    cost = ModelFootprint(num_parameters=1, weight_bytes=4, token_bytes=100)
    assert [cost.request_bytes(tokens, 16) for tokens in (1, 16, 17)] == [1600, 1600, 3200]
    assert [cost.num_requests(memory, 17, 16) for memory in (3199, 3200, 9600)] == [0, 1, 3]

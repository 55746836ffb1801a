"""What paged attention would serve wrong is refused at load, and the message names the cause."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PreTrainedModel

from replica.attention import transformers_bridge
from replica.config import EngineConfig
from replica.errors import UnsupportedModel
from replica.model.loader import load_model
from replica.model.refusals import refuse_unservable_config
from tests.replica.tiny_models import SLIDING_WINDOW, VOCAB_SIZE, random_model, tiny_config, tiny_engine

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 6,
    "long_factor": [4.0] * 6,
    "original_max_position_embeddings": 128,
    "rope_theta": 10000.0,
}


def other_model(name: str, **sizes: Any) -> PreTrainedModel:
    return random_model(getattr(transformers, f"{name}Config")(vocab_size=VOCAB_SIZE, **sizes))


@pytest.mark.parametrize(
    "rope",
    [{"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}, _LONGROPE],
    ids=lambda rope: rope["rope_type"],
)
def test_rope_that_depends_on_the_longest_request_of_the_batch(rope: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_config("Llama", rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match=f"rope_type '{rope['rope_type']}' scales with the longest position"):
        tiny_engine(random_model(config))
    config.save_pretrained(tmp_path)  # without weights: the config alone is enough to refuse
    with pytest.raises(UnsupportedModel, match=f"rope_type '{rope['rope_type']}'"):
        load_model(EngineConfig(model=str(tmp_path)))


def test_one_such_rope_among_the_kinds_of_layers_is_enough() -> None:
    fixed = {"rope_type": "default", "rope_theta": 10000.0}
    config = tiny_config("Gemma3", rope_parameters={"sliding_attention": fixed, "full_attention": fixed})
    refuse_unservable_config(config)
    config.rope_parameters["full_attention"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    with pytest.raises(UnsupportedModel, match="rope_type 'dynamic'"):
        refuse_unservable_config(config)


def test_fixed_rope_types_are_no_reason_to_refuse() -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    for rope in (_YARN, linear):
        tiny_engine(random_model(tiny_config("Llama", rope_parameters=rope)))


_TWO_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2}
_NO_INTERFACE = "do not attend through transformers' attention interface"


@pytest.mark.parametrize(
    ("name", "sizes", "cause"),
    [
        ("Mamba", {**_TWO_LAYERS, "state_size": 8}, "layers of type linear_attention"),
        ("FalconMamba", {**_TWO_LAYERS, "state_size": 8}, "layers of type linear_attention"),
        ("Rwkv", _TWO_LAYERS, r"layers \[0, 1\] keep no keys and values of their own"),
        ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, _NO_INTERFACE),
        ("Mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4}, _NO_INTERFACE),
        ("Falcon", {**_TWO_LAYERS, "num_attention_heads": 4}, _NO_INTERFACE),
    ],
)
def test_other_architectures(name: str, sizes: dict[str, Any], cause: str) -> None:
    """Recurrent state; ALiBi, which no attention function is told of; attention of the model's own."""
    with pytest.raises(UnsupportedModel, match=cause):
        tiny_engine(other_model(name, **sizes))


def test_attention_sinks() -> None:
    sizes = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": SLIDING_WINDOW}
    with pytest.raises(UnsupportedModel, match="attention sinks"):
        tiny_engine(random_model(tiny_config("GptOss", **sizes)))


def test_layers_that_share_keys_and_values() -> None:
    """A layer that reads another one's pages would need pages that are not its own."""
    config = tiny_config(
        "Gemma3nText",
        num_hidden_layers=10,
        num_kv_shared_layers=5,
        head_dim=16,
        sliding_window=SLIDING_WINDOW,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
        activation_sparsity_pattern=None,
        layer_types=["sliding_attention"] * 4 + ["full_attention"] + ["sliding_attention"] * 4 + ["full_attention"],
    )
    with pytest.raises(UnsupportedModel, match=r"layers \[5, 6, 7, 8, 9\] keep no keys and values of their own"):
        tiny_engine(random_model(config))


def test_attention_in_chunks() -> None:
    """Llama 4 looks no further back than a border at 8,192 tokens: a probe of a few tokens cannot see that."""
    config = tiny_config("Llama4Text", num_local_experts=2, head_dim=16, intermediate_size_mlp=64, moe_layers=[])
    assert "chunked_attention" in config.layer_types
    with pytest.raises(UnsupportedModel, match="layers of type chunked_attention"):
        tiny_engine(random_model(config))


def test_a_model_that_keeps_its_sliding_window_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 4,096 hides nothing from a probe of 24 tokens, so it must reach the attention as an option."""
    model = random_model(tiny_config("Mistral", sliding_window=4096))
    tiny_engine(model)
    original = transformers_bridge.paged_attention_forward

    def forgetful(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(transformers_bridge, "paged_attention_forward", forgetful)
    with pytest.raises(UnsupportedModel, match=r"layers \[0, 1\] do not tell their attention the sliding window"):
        tiny_engine(model)
    monkeypatch.undo()
    tiny_engine(model)


def test_attention_that_looks_ahead() -> None:
    with pytest.raises(UnsupportedModel, match="other logits than the model itself"):
        tiny_engine(random_model(tiny_config("Gemma3", use_bidirectional_attention=True)))


def test_a_forward_that_cannot_leave_out_logits() -> None:
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 32, "pad_token_id": 0}
    model = other_model("Whisper", encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=32, **sizes)
    with pytest.raises(UnsupportedModel, match="no logits_to_keep"):
        tiny_engine(model)

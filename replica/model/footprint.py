"""What a model costs in memory, found out without its weights."""

from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from replica.model.pool_sizing import bytes_per_token
from replica.model.probe import witness_layers


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """weight_bytes: all parameters, tied ones once. token_bytes: keys and values of one token in all layers; parts of
    a page that fill no whole cache lines would add to it, but none of a usual shape does."""

    num_parameters: int
    weight_bytes: int
    token_bytes: int

    def request_bytes(self, num_tokens: int, page_size: int) -> int:
        """KV memory of one request of so many tokens: whole pages."""
        return -(-num_tokens // page_size) * page_size * self.token_bytes

    def num_requests(self, kv_memory_bytes: int, num_tokens: int, page_size: int) -> int:
        """How many requests of so many tokens fit at once."""
        return kv_memory_bytes // self.request_bytes(num_tokens, page_size)


def model_footprint(model_dir: str, dtype_name: str) -> ModelFootprint:
    """dtype_name: of weights and K/V, e.g. "float32". Raises UnsupportedModel where the model cannot be served, OSError
    where its config cannot be read."""
    dtype = getattr(torch, dtype_name)
    config = AutoConfig.from_pretrained(model_dir)
    with torch.device("meta"):  # in the one dtype that the meta kernels of all layers take; shapes are the same
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager").eval()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    shapes = witness_layers(model, config.get_text_config().vocab_size)
    return ModelFootprint(
        num_parameters=num_parameters,
        weight_bytes=num_parameters * dtype.itemsize,
        token_bytes=bytes_per_token(shapes, dtype),
    )

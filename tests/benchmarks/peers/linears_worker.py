"""The bound of prefill: only the model's packed linear layers, over as many rows as the engine's steps have.

With a third argument also the products of causal attention (queries with keys, weights with values), at the speed that
the same kernel has on them; no softmax, norms, RoPE or pages.
"""

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from transformers import AutoModelForCausalLM
from worker import Generate, serve

from replica.config import EngineConfig
from replica.kernels.decoder_structure import read_structure
from replica.kernels.packed_weight import PackedWeight


def load(folder: str, threads: int) -> Generate:
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    structure = read_structure(model)
    layers = []
    for parts in structure.layers:
        for linears, gate in (
            ((parts.query, parts.key, parts.value), "none"), ((parts.attention_out,), "none"),
            ((parts.gate, parts.up), parts.activation), ((parts.mlp_out,), "none"),
        ):  # fmt: skip
            layers.append(PackedWeight([x.weight for x in linears], [x.bias for x in linears], gate))
    head = PackedWeight([structure.head.weight], [structure.head.bias])
    heads, dim = model.config.num_attention_heads, model.config.hidden_size // model.config.num_attention_heads
    chunk = EngineConfig(model=folder).max_num_batched_tokens
    attention = sys.argv[3:] == ["attention"]

    def products(start: int, num: int) -> None:
        """On average a query of the chunk sees start + num / 2 keys."""
        keys = start + num // 2
        scores = PackedWeight([torch.ones(keys, dim)], [None])
        sums = PackedWeight([torch.ones(dim, keys)], [None])
        queries, weights = torch.ones(num, dim), torch.ones(num, keys)
        for _ in range(len(structure.layers) * heads):
            scores(queries)
            sums(weights)

    def generate(prompts: list[list[int]], max_tokens: int, at_first_token: Callable[[], None]) -> list[list[int]]:
        for start in range(0, len(prompts[0]), chunk):
            num = min(chunk, len(prompts[0]) - start)
            for layer in layers:
                layer(torch.ones(num, layer.num_inputs))
            if attention:
                products(start, num)
        head(torch.ones(1, head.num_inputs))
        at_first_token()
        return []

    return generate


serve(load)

"""The forward pass of a Llama-like decoder as one native call."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from replica.attention.backend import LayerOptions
from replica.attention.paged_step import PagedStep
from replica.attention.pages import KVPages, LayerShape
from replica.kernels import structs
from replica.kernels.decoder_structure import DecoderStructure, LayerParts, NotFusable
from replica.kernels.native_batch import NativeBatch
from replica.kernels.native_library import load_native
from replica.kernels.packed_weight import PackedWeight
from replica.kernels.rope_table import RopeTable

_NO_ROPE = "none"
"""Stands for the kind of a layer that turns nothing; None is the one kind of a model without kinds."""


class FusedDecoder:
    """Called as the transformers model is, with a PagedStep as its cache; fp32 on CPU.

    Every operation computes a row by itself in a fixed order, so logits have the same bits in every batch and chunking
    and behind every cache hit.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(
        self,
        structure: DecoderStructure,
        shapes: Sequence[LayerShape],
        options: Sequence[LayerOptions],
        compress: bool = True,
    ):
        """Raises NotFusable where what the layers store and ask of attention is not what their projections give."""
        self._library = load_native()
        # Of the structure only this is kept: the model's own linear layers can be freed once they are packed.
        self._embedding = structure.embedding
        self._logit_softcap = structure.logit_softcap
        self._rope_kinds = [parts.rope_kind if parts.uses_rope else _NO_ROPE for parts in structure.layers]
        self._compress = compress
        self._weights: list[PackedWeight] = []
        self._norms: list[torch.Tensor] = []  # kept, because the C structures point to them
        self._ropes = {
            kind: RopeTable(structure.rotary, kind) for kind in dict.fromkeys(self._rope_kinds) if kind != _NO_ROPE
        }
        num_layers = len(structure.layers)
        self._layers = (structs.DecoderLayer * num_layers)()
        for target, parts, shape, option in zip(self._layers, structure.layers, shapes, options, strict=True):
            self._fill_layer(target, parts, shape, option)
        self._decoder = structs.Decoder(
            layers=self._layers,
            head=self._packed([structure.head]),
            final_norm=self._kept(structure.final_norm),
            num_layers=num_layers,
            hidden=structure.final_norm.numel(),
            final_norm_eps=structure.final_norm_eps,
        )
        self._vocab_size = structure.head.out_features
        self._pages: KVPages | None = None
        self._point_to_ropes()
        self._counters = torch.zeros(
            int(self._library.decoder_counter_bytes(ctypes.byref(self._decoder))), dtype=torch.uint8
        )
        self._thread_floats = int(self._library.decoder_scratch_floats(ctypes.byref(self._decoder)))
        self._memory = torch.empty(0)

    def __call__(self, *args: Any, **kwargs: Any) -> CausalLMOutputWithPast:
        return self.forward(*args, **kwargs)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        paged_step: PagedStep,
        logits_to_keep: torch.Tensor | None = None,
        past_key_values: PagedStep | None = None,
    ) -> CausalLMOutputWithPast:
        """input_ids, position_ids: [1, num_tokens]. logits_to_keep: rows whose logits are wanted, None for all.

        Returns logits [1, number of kept rows, vocabulary].
        """
        num_tokens = input_ids.shape[1]
        positions = position_ids[0].contiguous()
        rows = torch.arange(num_tokens) if logits_to_keep is None else logits_to_keep
        self._cover_positions(int(positions.max()) + 1)
        self._point_to_pages(paged_step.pages)
        batch = NativeBatch(paged_step.layout, paged_step.pages.page_size)
        hidden = self._embedding(input_ids)[0].contiguous()
        logits = torch.empty(len(rows), self._vocab_size)
        step = structs.Step(
            batch=batch.struct,
            positions=positions.data_ptr(),
            slots=paged_step.layout.slots.data_ptr(),
            last_rows=rows.data_ptr(),
            num_tokens=num_tokens,
            num_last=len(rows),
        )
        threads = torch.get_num_threads()
        num_partial = int(self._library.decoder_partial_floats(ctypes.byref(self._decoder), ctypes.byref(batch.struct)))
        workspace = self._workspace(hidden, logits, threads, num_partial)
        self._library.run_decoder(ctypes.byref(self._decoder), ctypes.byref(step), ctypes.byref(workspace), threads)
        cap = self._logit_softcap
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        return CausalLMOutputWithPast(logits=logits.unsqueeze(0))

    @property
    def num_weight_bytes(self) -> int:
        """What a step reads of weights, each once: with the bandwidth of memory the bound of a decode step."""
        return sum(weight.num_bytes for weight in self._weights)

    def _fill_layer(
        self, target: structs.DecoderLayer, parts: LayerParts, shape: LayerShape, options: LayerOptions
    ) -> None:
        heads, rest = divmod(parts.query.out_features, shape.key_dim)
        fits = (
            not rest
            and not shape.expanded
            and parts.key.out_features == shape.num_kv_heads * shape.key_dim
            and parts.value.out_features == shape.num_kv_heads * shape.value_dim
            and parts.attention_out.in_features == heads * shape.value_dim
            and heads % shape.num_kv_heads == 0
        )
        if not fits:
            raise NotFusable(f"its projections do not give heads of the stored shape {shape}")
        target.qkv = self._packed([parts.query, parts.key, parts.value])
        target.attention_out = self._packed([parts.attention_out])
        target.gate_up = self._packed([parts.gate, parts.up], parts.activation)
        target.mlp_out = self._packed([parts.mlp_out])
        for name in ("input_norm", "query_norm", "key_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"):
            setattr(target, name, self._kept(getattr(parts, name)))
        target.norm_eps = parts.norm_eps
        target.attention = structs.AttentionLayer(
            heads=heads,
            kv_heads=shape.num_kv_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            query_stride=parts.query.out_features + parts.key.out_features + parts.value.out_features,
            window=options.sliding_window or 0,
            scaling=options.scaling,
            softcap=options.softcap or 0.0,
        )
        if parts.uses_rope and self._ropes[parts.rope_kind].rotary_dim > shape.key_dim:
            raise NotFusable(f"its RoPE turns more than the {shape.key_dim} dimensions of a head")

    def _packed(self, linears: Sequence[torch.nn.Linear], gate: Any = "none") -> structs.Linear:
        weight = PackedWeight(
            [linear.weight for linear in linears], [linear.bias for linear in linears], gate, self._compress
        )
        self._weights.append(weight)
        return weight.struct

    def _kept(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._norms.append(tensor)
        return tensor.data_ptr()

    def _cover_positions(self, num_positions: int) -> None:
        grown = [rope.cover(num_positions) for rope in self._ropes.values()]
        if any(grown):
            self._point_to_ropes()

    def _point_to_ropes(self) -> None:
        for target, kind in zip(self._layers, self._rope_kinds, strict=True):
            if kind != _NO_ROPE:
                rope = self._ropes[kind]
                target.cos, target.sin = rope.cos.data_ptr(), rope.sin.data_ptr()
                target.rotary_dim = rope.rotary_dim

    def _point_to_pages(self, pages: KVPages) -> None:
        if pages is self._pages:
            return
        for index, target in enumerate(self._layers):
            keys, values = pages.layer(index)
            target.attention.keys, target.attention.values = keys.data_ptr(), values.data_ptr()
            target.attention.key_page_stride = keys.stride(0)
            target.attention.value_page_stride = values.stride(0)
        self._pages = pages

    def _workspace(
        self, hidden: torch.Tensor, logits: torch.Tensor, threads: int, num_partial: int
    ) -> structs.Workspace:
        """Cuts one block of memory, kept from step to step, into what the step needs."""
        num_tokens, width = hidden.shape
        sizes = {
            "other": num_tokens * width,
            "qkv": num_tokens * max(layer.qkv.n for layer in self._layers),
            "attended": num_tokens * max(layer.attention_out.k for layer in self._layers),
            "inner": num_tokens * max(layer.mlp_out.k for layer in self._layers),
            "scratch": threads * self._thread_floats,
            "partials": num_partial,
        }
        if self._memory.numel() < sum(sizes.values()) + 16 * len(sizes):
            self._memory = torch.empty(sum(sizes.values()) + 16 * len(sizes))
        workspace = structs.Workspace(
            hidden=hidden.data_ptr(),
            logits=logits.data_ptr(),
            counters=self._counters.data_ptr(),
            thread_floats=self._thread_floats,
        )
        address = self._memory.data_ptr()
        for name, size in sizes.items():
            setattr(workspace, name, address)
            address += -(-size // 16) * 64  # each part begins on a cache line
        return workspace

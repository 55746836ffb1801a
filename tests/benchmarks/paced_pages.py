"""Paced replicas with real pages: what is pulled is as many bytes as the model in the folder has, over the real way."""

from typing import ClassVar

import torch
from transformers import AutoConfig

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from cluster.lab.cost_model import CostModel
from replica.attention.pages import KVPages, LayerShape
from replica.config import EngineConfig
from replica.engine.loads import PageLoader
from replica.loading.page_loader import PageLoader as ThreadedLoader
from replica.loading.page_memory import PageMemory
from replica.loading.page_source import EnginePages
from replica.loading.tiers import page_identity
from replica.transfer.transfer import PageSource, Transfer
from tests.benchmarks.paced_replica import PacedReplica

PACE_70B = CostModel(
    origin="computed, not measured: a 70B model in 16 bits on four GPUs of 2 TB/s and 312 TFLOP/s, prefill at 3,000 "
    "tokens/s",
    step_seconds=140e9 / (4 * 2e12),  # the weights are read once
    prefill_token_seconds=1 / 3000,
    prefill_pair_seconds=4 * 8192 * 80 / (4 * 156e12),  # scores and their product with V, at half of the peak
    decode_request_seconds=1e-4,
    decode_context_seconds=327_680 / (4 * 2e12),  # bytes of K and V of a token: 8 heads of 128, 80 layers
)
PACE_8B = CostModel(
    origin="computed, not measured: an 8B model in 16 bits on one GPU of 2 TB/s and 312 TFLOP/s, prefill at 10,000 "
    "tokens/s",
    step_seconds=16e9 / 2e12,
    prefill_token_seconds=1 / 10_000,
    prefill_pair_seconds=4 * 4096 * 32 / 156e12,
    decode_request_seconds=1e-4,
    decode_context_seconds=131_072 / 2e12,  # 32 layers
)


class PagedReplica(PacedReplica):
    def _movers(
        self, config: EngineConfig, hasher: BlockHasher, manager: KVCacheManager
    ) -> tuple[PageLoader | None, PageSource | None, Transfer | None]:
        if not config.pull or config.num_blocks is None:
            return None, None, None
        model = AutoConfig.from_pretrained(config.model).get_text_config()
        head_dim = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
        shapes = [LayerShape(model.num_key_value_heads, head_dim, head_dim)] * model.num_hidden_layers
        pages = KVPages(shapes, config.num_blocks, config.block_size, torch.float32, torch.device("cpu"))
        for number in range(pages.num_pages):  # else what nobody wrote to is one page of zeros, and quick to copy
            pages.blob(number).fill_(number % 251)
        memory = PageMemory(pages)
        source = EnginePages(manager, memory, page_identity(hasher, pages))
        puller = self._transfer(source.identity, source.page_bytes)
        return ThreadedLoader(memory, None, puller), source, puller


class Paced70B(PagedReplica):
    pace: ClassVar[CostModel] = PACE_70B


class Paced8B(PagedReplica):
    pace: ClassVar[CostModel] = PACE_8B

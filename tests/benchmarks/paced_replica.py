"""A replica whose forward pass only takes its time: scheduler, cache, events, metrics and API are the real ones."""

import time
from typing import ClassVar

import torch
from transformers import AutoTokenizer

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from cluster.lab.cost_model import CostModel, StepWork
from cluster.serving.replica_port import ReplicaWithApi
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.engine.loads import PageLoader
from replica.engine.scheduler import Scheduler
from replica.metrics import EngineMetrics
from replica.model.runner import BlockTableOf
from replica.plan import StepPlan
from replica.text.vocabulary import TokenizerVocabulary
from replica.transfer.transfer import PageSource, Transfer

PACE = CostModel(
    origin="computed, not measured: an 8B model in 16 bits on one GPU of 600 GB/s and 125 TFLOP/s at half its peak",
    step_seconds=16e9 / 600e9,  # the weights are read once
    prefill_token_seconds=16e9 / 62e12,  # two operations for each weight
    prefill_pair_seconds=4 * 4096 * 32 / 62e12,  # scores and their product with V, hidden size 4096, 32 layers
    decode_request_seconds=1e-4,
    decode_context_seconds=131072 / 600e9,  # bytes of K and V of a token: 8 heads of 128, 32 layers
)
STEP_TOKENS = 2048
ANSWER = " word"


class PacedReplica(ReplicaWithApi):
    """The model's folder is used for its tokenizer alone; pages are only numbers."""

    pace: ClassVar[CostModel] = PACE

    def _build_engine(self, config: EngineConfig, hasher: BlockHasher, metrics: EngineMetrics) -> Engine:
        tokenizer = AutoTokenizer.from_pretrained(config.model).backend_tokenizer
        if config.max_model_len is None or config.num_blocks is None:
            raise ValueError("max_model_len and num_blocks must be given: the model itself is not read")
        vocab_size = tokenizer.get_vocab_size()
        manager = KVCacheManager(config.num_blocks, config.block_size, keep_token_ids=True)
        scheduler = Scheduler(
            manager,
            hasher,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=STEP_TOKENS,
            watermark_pages=int(config.num_blocks * config.watermark),
        )
        (answer_id,) = tokenizer.encode(ANSWER, add_special_tokens=False).ids
        loader, source, puller = self._movers(config, hasher, manager)
        engine = Engine(
            scheduler,
            PacedRunner(vocab_size, answer_id, self.pace),
            TokenizerVocabulary(tokenizer, frozenset(), vocab_size, config.max_model_len),
            hasher,
            max_waiting_requests=config.max_waiting_requests,
            max_waiting_tokens=config.max_waiting_tokens,
            loader=loader,
            observer=metrics,
        )
        if source is not None:
            engine.page_source, engine.page_transfer, engine.page_bytes = source, puller, source.page_bytes
        return engine

    def _movers(
        self, config: EngineConfig, hasher: BlockHasher, manager: KVCacheManager
    ) -> tuple[PageLoader | None, PageSource | None, Transfer | None]:
        """What brings pages into the pool, what gives them to others, and what asks others for theirs."""
        return None, None, None


class PacedRunner:
    """Says the same token again and again, each time after as long as the model would have needed."""

    def __init__(self, vocab_size: int, answer_id: int, pace: CostModel):
        self._logits = torch.zeros(vocab_size)
        self._logits[answer_id] = 1.0
        self._pace = pace

    def run(self, plan: StepPlan, block_table_of: BlockTableOf) -> torch.Tensor:
        ends_at = time.monotonic() + self._pace.seconds(StepWork.of(plan))
        logits = self._logits.repeat(sum(item.num_logit_rows for item in plan.scheduled), 1)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return logits

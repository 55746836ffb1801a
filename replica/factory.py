"""Puts an engine together from a model folder."""

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from cache.block_hasher import BlockHasher
from cache.kv_cache_manager import KVCacheManager
from replica.attention.backend import AttentionBackend
from replica.attention.pages import KVPages, LayerShape
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.engine.observer import EngineObserver
from replica.engine.scheduler import Scheduler
from replica.errors import UnsupportedModel
from replica.loading.page_loader import PageLoader
from replica.loading.page_memory import PageMemory
from replica.loading.page_source import EnginePages
from replica.loading.tiers import build_tiers, deterministic_numerics, page_identity
from replica.model.backend_choice import backend_candidates, unavailable_before
from replica.model.fast_path import fastest_forward
from replica.model.forward_pass import ForwardPass
from replica.model.loader import LoadedModel, load_model
from replica.model.pool_sizing import num_pages
from replica.model.probe import Forward, witness_layers
from replica.model.runner import ModelRunner
from replica.text.vocabulary import TokenizerVocabulary
from replica.transfer.transfer import Transfer

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    hasher: BlockHasher,
    observer: EngineObserver | None = None,
    loaded: LoadedModel | None = None,
    transfer: Callable[[bytes, int], Transfer] | None = None,
) -> Engine:
    """Loads, checks and sizes everything. Raises UnsupportedModel, PoolTooSmall or ValueError with the cause.

    loaded: a model that is in memory already (tests); it is switched to paged attention.
    transfer: makes the pulling end, from the pages' identity and their size in bytes; without it nothing is pulled.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    loaded = loaded or load_model(config)
    if config.deterministic and (loaded.device.type != "cpu" or loaded.dtype != torch.float32):
        raise ValueError(f"deterministic needs float32 on a CPU, got {loaded.dtype} on {loaded.device.type}")
    shapes, backend, page_size, forward, forward_pass = _verified_backend(config, loaded)
    logger.log(logging.WARNING if forward_pass.is_slow else logging.INFO, "the forward pass runs on %s", forward_pass)
    pool_pages = num_pages(config, shapes, loaded.dtype, loaded.device, page_size, loaded.max_model_len)
    pages = KVPages(shapes, pool_pages, page_size, loaded.dtype, loaded.device)
    logger.info("engine ready: %d pages of %d tokens, window %d", pool_pages, page_size, loaded.max_model_len)
    manager = KVCacheManager(
        pool_pages,
        config.block_size,
        page_size // config.block_size,
        prefix_caching=config.prefix_caching,
        keep_token_ids=True,
        eviction=config.eviction,
    )
    scheduler = Scheduler(
        manager,
        hasher,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        watermark_pages=int(pool_pages * config.watermark),
    )
    identity = page_identity(hasher, pages, deterministic_numerics(forward_pass) if config.deterministic else "")
    memory, loader = PageMemory(pages), None
    source = EnginePages(manager, memory, identity)
    tiers = build_tiers(config, identity, pages) if config.prefix_caching else None
    if tiers is not None:
        manager.attach(tiers)
        tiers.write_used(source.read_page)
    gives = config.pull and config.prefix_caching
    puller = transfer(identity, source.page_bytes) if gives and transfer is not None else None
    if tiers is not None or puller is not None:
        loader = PageLoader(memory, tiers, puller)
    engine = Engine(
        scheduler,
        ModelRunner(forward, pages, backend),
        TokenizerVocabulary(loaded.tokenizer, loaded.eos_token_ids, loaded.vocab_size, loaded.max_model_len),
        hasher,
        max_waiting_requests=config.max_waiting_requests,
        max_waiting_tokens=config.max_waiting_tokens,
        longest_window=max(
            (shape.sliding_window for shape in shapes if shape.sliding_window is not None), default=None
        ),
        loader=loader,
        observer=observer,
    )
    engine.forward_pass = forward_pass
    engine.page_source = source if gives else None
    engine.page_transfer = puller
    engine.page_bytes = pages.page_bytes
    return engine


def _verified_backend(
    config: EngineConfig, loaded: LoadedModel
) -> tuple[list[LayerShape], AttentionBackend, int, Forward, ForwardPass]:
    """What each layer stores, the best attention backend that serves this model right, the tokens of its pages, the
    forward pass that runs on it, and how it was chosen.

    Raises UnsupportedModel with the last backend's cause where none does.
    """
    candidates = backend_candidates(
        config.attention_backend, loaded.device, loaded.dtype, config.block_size, config.page_size
    )
    is_free = config.attention_backend == "auto"
    shapes = witness_layers(loaded.model, loaded.vocab_size)
    refused = []
    for backend, page_size in candidates:
        try:
            forward, chosen = fastest_forward(
                loaded.model, shapes, backend, page_size, loaded.vocab_size, loaded.max_model_len,
                compress=config.compress_weights, deterministic=config.deterministic,
            )  # fmt: skip
        except UnsupportedModel as error:
            if backend is candidates[-1][0]:
                raise
            refused.append(f"{backend.name} attention: {error}")
        else:
            absent = unavailable_before(backend, loaded.device, loaded.dtype) if is_free else ()
            return (
                shapes,
                backend,
                page_size,
                forward,
                replace(chosen, passed_over=(*absent, *refused, *chosen.passed_over)),
            )
    pages = f" with page_size {config.page_size}" if config.page_size is not None else ""
    raise ValueError(f"no attention backend can run here{pages}")

"""Everything one engine can be told."""

from dataclasses import dataclass

from cache.eviction import EVICTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """model: local folder or hub id of a transformers causal LM.

    dtype: "auto" is the checkpoint's on a GPU and float32 on a CPU. device: "auto", "cpu" or "cuda".
    max_model_len: tokens of prompt and answer together; None is the model's own window.
    block_size: tokens of a hash block, the grain of matching. page_size: tokens of a physical page, a multiple of it;
    None is the smallest that the attention backend takes.
    num_blocks, kv_memory_bytes: size of the pool; blocks win over bytes, bytes over what memory allows. num_blocks
    counts blocks of block_size tokens, of which a page may hold several.
    memory_fraction: share of the free memory that the pool may take where neither is given; on CPUs it takes half of
    that, all of it only where one request needs it.
    max_num_seqs: requests that run at once. max_num_batched_tokens: the token budget of a step.
    max_waiting_requests, max_waiting_tokens: beyond these a request is refused (HTTP 429).
    watermark: share of the pool that admission leaves free as headroom (49, A24).
    compress_weights: on CPUs, keep each weight matrix in the smallest form from which the very same fp32 numbers come
        out again (bfloat16, int8 or int4 with scales): decoding is as fast as memory is.
    deterministic: only forward passes whose logits are the same to the bit whatever the batch, the chunks and the hits;
        float32 on CPUs. Costs nothing where the native kernels serve the whole model, else much: one token at a time.
    eviction: which cached pages go first, one of `cache.eviction.EVICTIONS`.
    host_kv_memory: bytes outside the pool that keep the pages which the pool evicts; 0 keeps none.
    disk_kv_folder: where pages go that are used again; None is nowhere.
    disk_kv_size: bytes that one replica may take there. disk_kv_write_rate: bytes per second that it may write.
    pull: whether pages are taken from other replicas where the router says so, and given to them. pull_rate: bytes per
        second that it may give to all of them together; None is no bound.
    threads: torch threads; None is the cores of the machine shared among replicas by the caller.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    attention_backend: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    page_size: int | None = None
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    memory_fraction: float = 0.5
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_waiting_requests: int = 512
    max_waiting_tokens: int = 1_000_000
    watermark: float = 0.01
    prefix_caching: bool = True
    compress_weights: bool = True
    deterministic: bool = False
    eviction: str = "lru"
    host_kv_memory: int = 0
    disk_kv_folder: str | None = None
    disk_kv_size: int = 10 * 2**30
    disk_kv_write_rate: int = 100 * 2**20
    pull: bool = False
    pull_rate: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        bounds = {
            "max_model_len": (1, 2**31), "block_size": (1, 1024), "num_blocks": (2, 2**31),
            "kv_memory_bytes": (1, 2**63), "max_num_seqs": (1, 65536), "max_num_batched_tokens": (1, 2**24),
            "max_waiting_requests": (1, 2**31), "max_waiting_tokens": (1, 2**63), "threads": (1, 1024),
            "host_kv_memory": (0, 2**63), "disk_kv_size": (1, 2**63), "disk_kv_write_rate": (1, 2**63),
            "pull_rate": (1, 2**63),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"{name} must be between {low} and {high}, got {value}")
        if self.page_size is not None and (self.page_size < 1 or self.page_size % self.block_size):
            raise ValueError(f"page_size must be a multiple of block_size ({self.block_size}), got {self.page_size}")
        if self.num_blocks is not None and self.num_blocks * self.block_size < (self.page_size or 0):
            raise ValueError(f"num_blocks must fill a page of {self.page_size} tokens, got {self.num_blocks} blocks")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ValueError(f"memory_fraction must be above 0 and at most 1, got {self.memory_fraction}")
        if not 0.0 <= self.watermark < 0.5:
            raise ValueError(f"watermark must be between 0 and 0.5, got {self.watermark}")
        if self.dtype not in ("auto", "float32", "float16", "bfloat16"):
            raise ValueError(f"dtype must be auto, float32, float16 or bfloat16, got {self.dtype!r}")
        if self.eviction not in EVICTIONS:
            raise ValueError(f"eviction must be one of {', '.join(EVICTIONS)}, got {self.eviction!r}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be below "
                f"max_num_seqs ({self.max_num_seqs}): each running request needs one token of a step"
            )

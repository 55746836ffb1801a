"""Whether this machine has the memory and the GPUs that the settings ask for, before anything is started."""

import os
from collections.abc import Mapping
from pathlib import Path

from cluster.config import ServeConfig
from cluster.models.facts import read_model_facts
from cluster.setting_sources import format_bytes
from replica.node_share import available_memory

PROCESS_BYTES = 350 * 1024**2
"""What a process with torch and transformers takes before any weight."""


def check_gpus(config: ServeConfig, there: int | None = None) -> None:
    """there: GPUs of this machine, found out where None. Raises ValueError with both numbers.

    Where the driver does not say how many there are (WSL, other makers), Ray's own count decides later.
    """
    num_gpus = config.replicas * config.gpus_per_replica
    there = count_gpus() if there is None else there
    if there is not None and num_gpus > there:
        raise ValueError(
            f"{config.replicas} replicas with {config.gpus_per_replica} GPU each need {num_gpus} GPUs, "
            f"but this machine has {there}"
        )


def count_gpus(
    driver: Path = Path("/proc/driver/nvidia/gpus"),
    other_drivers: tuple[Path, ...] = (Path("/dev/dxg"), Path("/dev/kfd")),
    environment: Mapping[str, str] = os.environ,
) -> int | None:
    """NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves to this process; None where that cannot be told."""
    if not driver.is_dir():
        return None if any(path.exists() for path in other_drivers) else 0
    count = len(list(driver.iterdir()))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else min(count, len([name for name in visible.split(",") if name.strip()]))


def check_memory(config: ServeConfig, model_dir: Path, available_bytes: int | None = None) -> None:
    """Weights, interpreter and the KV memory that was asked for, of all replicas, against what is available.

    The rest (activations, a pool by number of blocks) is the engine's own check. Replicas on GPUs keep their weights
    there, so only the interpreters count. Raises ValueError with the numbers.
    """
    facts = read_model_facts(model_dir)
    weights = kv_memory = 0
    if not config.gpus_per_replica:
        weights = facts.loaded_bytes(facts.resolved_dtype(config.dtype, on_gpu=False))
        kv_memory = config.kv_memory or 0
    kv_memory += config.host_kv_memory
    needed = config.replicas * (weights + kv_memory + PROCESS_BYTES)
    available = available_memory() if available_bytes is None else available_bytes
    if needed > available:
        kv = f" and {format_bytes(kv_memory)} of KV memory" if kv_memory else ""
        raise ValueError(
            f"{config.replicas} replicas need {format_bytes(needed)} of memory (each {format_bytes(weights)} of weights"
            f"{kv}), but {format_bytes(available)} are free: fewer --replicas, less --kv-memory, or another --model"
        )


def check_one_request_fits(config: ServeConfig, model_dir: Path) -> None:
    """Raises ValueError where the window is longer than the model's or the given KV memory does not hold one request,
    UnsupportedModel where the model cannot be served."""
    facts = read_model_facts(model_dir)
    window = facts.max_model_len(config.max_model_len)
    if config.kv_memory is None or config.num_blocks is not None:
        return
    from replica.model.footprint import model_footprint  # imports torch: only where there is something to check

    dtype = facts.resolved_dtype(config.dtype, on_gpu=config.gpus_per_replica > 0)
    needed = model_footprint(str(model_dir), dtype).request_bytes(window, config.page_size or config.block_size)
    if config.kv_memory < needed:
        raise ValueError(
            f"kv_memory must hold one request of max_model_len={window} tokens ({format_bytes(needed)}), "
            f"got {format_bytes(config.kv_memory)}"
        )

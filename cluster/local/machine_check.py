"""Whether this machine has the memory and the GPUs that the settings ask for, before anything is started."""

import os
from collections.abc import Mapping
from pathlib import Path

from cluster.config import ServeConfig
from cluster.models.facts import read_model_facts
from cluster.setting_sources import expanded, format_bytes
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
    weights, asked = 0, {"--host-kv-memory": config.host_kv_memory}
    if not config.gpus_per_replica:
        weights = facts.loaded_bytes(facts.resolved_dtype(config.dtype, on_gpu=False))
        asked["--kv-memory"] = config.kv_memory or 0
    needed = config.replicas * (weights + sum(asked.values()) + PROCESS_BYTES)
    available = available_memory() if available_bytes is None else available_bytes
    if needed > available:
        largest_first = sorted((flag for flag in asked if asked[flag]), key=asked.__getitem__, reverse=True)
        kv = "".join(f", {format_bytes(asked[flag])} of {flag}" for flag in largest_first)
        less = "".join(f"less {flag}, " for flag in largest_first)
        raise ValueError(
            f"{config.replicas} replicas need {format_bytes(needed)} of memory (each {format_bytes(weights)} of weights"
            f"{kv}), but {format_bytes(available)} are free: {less}fewer --replicas or another --model"
        )


def check_disk_folder(config: ServeConfig) -> None:
    """Raises ValueError where no pages could be written into disk_kv_folder. A replica would only warn of it: a disk
    may come back, but what a user mistyped does not."""
    if config.disk_kv_folder is None:
        return
    folder = expanded(config.disk_kv_folder).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"disk_kv_folder must be a folder, and {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"disk_kv_folder must be writable, and nothing may be written into {there}")


def check_one_request_fits(config: ServeConfig, model_dir: Path) -> None:
    """Raises ValueError where the window is longer than the model's, the given KV memory does not hold one request or
    that of a colder tier one page; UnsupportedModel where the model cannot be served."""
    facts = read_model_facts(model_dir)
    window = facts.max_model_len(config.max_model_len)
    kv_memory = config.kv_memory if config.num_blocks is None else None
    if kv_memory is None and not config.host_kv_memory and config.disk_kv_folder is None:
        return
    from replica.loading.tiers import check_tier_sizes  # these import torch: only where there is something to check
    from replica.model.footprint import model_footprint

    dtype = facts.resolved_dtype(config.dtype, on_gpu=config.gpus_per_replica > 0)
    footprint, page_size = model_footprint(str(model_dir), dtype), config.page_size or config.block_size
    check_tier_sizes(config.engine(str(model_dir)), footprint.request_bytes(page_size, page_size))
    needed = footprint.request_bytes(window, page_size)
    if kv_memory is not None and kv_memory < needed:
        raise ValueError(
            f"kv_memory must hold one request of max_model_len={window} tokens ({format_bytes(needed)}), "
            f"got {format_bytes(kv_memory)}"
        )

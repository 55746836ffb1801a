"""Refuses GPUs that the machine lacks before anything is started."""

import os
from collections.abc import Mapping
from pathlib import Path

from cluster.config import ServeConfig


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

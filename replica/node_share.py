"""One replica's part of the node that it runs on, worked out there and not where the application was built."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from replica.config import EngineConfig

_ROOT = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class CgroupLimits:
    """Read anew at each call: a limit may change while a process runs.

    A limit holds for a group and all below it, so each group from the process's own up to the root counts, and the
    tightest one is in force. What cannot be read limits nothing: inside a container the process's own path is often
    that of the host and is not there, while the container's group is mounted as the root.
    """

    def __init__(self, root: Path = _ROOT, own_groups: Path = _OWN_GROUPS):
        """root: where the hierarchies are mounted. own_groups: names this process's group in each of them."""
        self._root = root
        self._own_groups = own_groups

    def cpus(self) -> float | None:
        """CPUs' worth of time in each period; None where no quota is set."""
        quotas = [quota for folder in self._folders("cpu") if (quota := _cpu_quota(folder)) is not None]
        return min(quotas, default=None)

    def free_memory(self) -> int | None:
        """Bytes that may still be taken; None where no limit is set. What the kernel caches of files is free."""
        free = [left for folder in self._folders("memory") if (left := _free_memory(folder)) is not None]
        return min(free, default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        paths = self._paths()
        for hierarchy, path in (
            (self._root, paths.get("")),
            (self._root / controller, paths.get(controller)),
            (self._root / "cpu,cpuacct", paths.get(controller) if controller == "cpu" else None),
        ):
            yield hierarchy
            parts = [part for part in (path or "/").split("/") if part]
            if ".." in parts:  # of a group outside the namespace's root
                continue
            for depth in range(len(parts)):
                yield hierarchy.joinpath(*parts[: depth + 1])

    def _paths(self) -> Mapping[str, str]:
        """Path of the own group by controller; that of version 2 under the empty name."""
        try:
            lines = self._own_groups.read_text().splitlines()
        except OSError:
            return {}
        fields = [line.split(":", 2) for line in lines]
        return {name: path for _, names, path in (f for f in fields if len(f) == 3) for name in names.split(",")}


def _cpu_quota(folder: Path) -> float | None:
    numbers = _numbers(_words(folder / "cpu.max"))  # "max 100000" where there is none
    if not numbers:
        numbers = _numbers(_words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us"))  # -1: none
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _free_memory(folder: Path) -> int | None:
    for limit_name, usage_name, cached_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        numbers = _numbers(_words(folder / limit_name) + _words(folder / usage_name))
        if len(numbers) == 2 and numbers[0] < 2**62:  # version 1 writes a number near 2^63 for none
            words = _words(folder / "memory.stat")
            cached = dict(zip(words[::2], words[1::2], strict=False)).get(cached_name, "0")
            return max(0, numbers[0] - max(0, numbers[1] - int(cached)))
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _numbers(words: list[str]) -> list[int]:
    return [int(word) for word in words if word.removeprefix("-").isdigit()]


def usable_cpus(limits: CgroupLimits | None = None) -> int:
    """Cores that this process may run on, or fewer where a quota is below them; at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = (limits or CgroupLimits()).cpus()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def available_memory(limits: CgroupLimits | None = None) -> int:
    """Bytes of the machine, or fewer where a container or service may not take so much (A38)."""
    available = int(psutil.virtual_memory().available)
    free = (limits or CgroupLimits()).free_memory()
    return available if free is None else min(available, free)


def replicas_on_node(local_rank: int, num_replicas: int, num_nodes: int) -> int:
    """How many replicas share this node, this one included. Serve spreads them evenly; where they lie denser than
    that, each one counts at least those that came before it.

    local_rank: of this replica among those of its node, from 0. num_nodes: those that can hold replicas.
    """
    return max(local_rank + 1, math.ceil(num_replicas / max(1, num_nodes)))


def with_node_share(config: EngineConfig, num_sharing: int, cpus: int | None = None) -> EngineConfig:
    """Threads and the fraction of free memory for one of `num_sharing` replicas on CPUs of this node.

    What the settings name stays. A replica on a GPU has that to itself. cpus: default those of this process.
    """
    if config.device == "cuda":
        return config
    threads = config.threads or max(1, (usable_cpus() if cpus is None else cpus) // num_sharing)
    return replace(config, threads=min(threads, 1024), memory_fraction=config.memory_fraction / num_sharing)

"""One replica's part of the node that it runs on, worked out there and not where the application was built."""

import math
import os
from dataclasses import replace

import psutil

from replica.cgroup_limits import CgroupLimits
from replica.engine.config import EngineConfig


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

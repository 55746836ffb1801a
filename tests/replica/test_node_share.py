"""A replica's threads and memory are those of its own node, as far as its control groups let it have them."""

from pathlib import Path

import pytest

from replica.config import EngineConfig
from replica.node_share import CgroupLimits, available_memory, replicas_on_node, usable_cpus, with_node_share

MIB = 2**20


def limits(tmp_path: Path, own_groups: str, files: dict[str, str]) -> CgroupLimits:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own_groups)
    return CgroupLimits(tmp_path / "cgroup", tmp_path / "own")


@pytest.mark.parametrize(
    ("own_groups", "files", "cpus"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4.0),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        # A service of a slice: the tightest of all groups above counts, wherever it stands.
        ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3.0),
        ("0::/a/b\n", {"a/cpu.max": "900000 100000\n", "a/b/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "max 100000\n", "a/b/cpu.max": "100000 100000\n"}, None),
        # Version 1, as docker mounts it, with the host's path that is not there, and nested.
        ("4:cpu,cpuacct:/docker/x\n", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ("4:cpu,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpu,cpuacct:/s\n", {"cpu,cpuacct/s/cpu.cfs_quota_us": "150000",
                                "cpu,cpuacct/s/cpu.cfs_period_us": "100000"}, 1.5),
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("nonsense", {"cpu.max": "also nonsense\n"}, None),
    ],
)  # fmt: skip
def test_the_tightest_cpu_quota_counts(tmp_path: Path, own_groups: str, files: dict[str, str], cpus: float) -> None:
    assert limits(tmp_path, own_groups, files).cpus() == cpus


def test_a_quota_of_four_cpus_on_a_large_host_gives_four_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert usable_cpus(limits(tmp_path, "0::/\n", {})) == 64
    assert usable_cpus(limits(tmp_path, "0::/\n", {"cpu.max": "400000 100000\n"})) == 4
    assert usable_cpus(limits(tmp_path, "0::/\n", {"cpu.max": "20000 100000\n"})) == 1
    assert usable_cpus(limits(tmp_path, "0::/\n", {"cpu.max": "6400000000 100000\n"})) == 64


def test_a38_the_tightest_memory_limit_counts_less_what_is_in_use(tmp_path: Path) -> None:
    nested = limits(
        tmp_path / "v2", "0::/a/b\n",
        {"a/memory.max": f"{900 * MIB}\n", "a/memory.current": f"{100 * MIB}\n",
         "a/b/memory.max": "max\n", "a/b/memory.current": "7\n"},
    )  # fmt: skip
    assert nested.free_memory() == available_memory(nested) == 800 * MIB
    version_1 = limits(
        tmp_path / "v1", "4:memory:/docker/x\n",
        {"memory/memory.limit_in_bytes": f"{500 * MIB}", "memory/memory.usage_in_bytes": f"{200 * MIB}"},
    )  # fmt: skip
    assert version_1.free_memory() == 300 * MIB
    none = {"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "5"}
    assert limits(tmp_path / "none", "4:memory:/\n", none).free_memory() is None


def test_what_the_kernel_caches_of_files_is_free(tmp_path: Path) -> None:
    """Weights that were read a moment ago count as used and go as soon as somebody wants the memory."""
    files = {"memory.max": f"{900 * MIB}", "memory.current": f"{600 * MIB}",
             "memory.stat": f"anon {100 * MIB}\nfile {500 * MIB}\ninactive_file {400 * MIB}\n"}  # fmt: skip
    assert limits(tmp_path, "0::/\n", files).free_memory() == 700 * MIB


@pytest.mark.parametrize(
    ("local_rank", "num_replicas", "num_nodes", "expected"),
    [(0, 2, 1, 2), (1, 2, 1, 2), (0, 2, 2, 1), (0, 8, 3, 3), (0, 1, 5, 1), (3, 4, 2, 4), (0, 2, 0, 2)],
)
def test_only_the_replicas_of_this_node_share_it(
    local_rank: int, num_replicas: int, num_nodes: int, expected: int
) -> None:
    assert replicas_on_node(local_rank, num_replicas, num_nodes) == expected


def test_threads_and_memory_are_shared_among_the_nodes_replicas() -> None:
    config = EngineConfig(model="m", device="cpu", memory_fraction=0.5)
    shared = with_node_share(config, 2, cpus=7)
    assert (shared.threads, shared.memory_fraction) == (3, 0.25)
    assert with_node_share(config, 9, cpus=4).threads == 1
    assert with_node_share(EngineConfig(model="m", device="cpu", threads=5), 2, cpus=4).threads == 5
    on_gpu = EngineConfig(model="m", device="cuda", memory_fraction=0.85)
    assert with_node_share(on_gpu, 2, cpus=4) == on_gpu

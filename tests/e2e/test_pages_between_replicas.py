"""A cluster whose replicas give each other pages and keep evicted ones: a hot document is computed once, a killed giver
costs no answer, and a reset empties everything."""

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.deploy.dashboard import OF_COLDER_TIERS, dashboard_queries
from tests.e2e.cluster_client import ClusterClient, cacheable_tokens
from tests.e2e.running_cluster import running_cluster

DOCUMENT_TOKENS = 1000
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
"""SmolLM2's layers, K and V, heads and their size, float32."""
ARGUMENTS = (
    "--replicas", "2", "--num-blocks", "200", "--max-model-len", "2048", "--max-num-seqs", "4", "--pull",
    "--host-kv-memory", "500MB",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster_process(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(ARGUMENTS, tmp_path_factory.mktemp("cluster")) as process:
        yield process


@pytest.fixture
def cluster(cluster_process: ClusterProcess) -> ClusterClient:
    client = ClusterClient(cluster_process.base_url)
    client.wait_until(lambda: len(client.replicas()) == 2, "both replicas answer", 120.0)
    client.wait_idle()
    return client


def hits(cluster: ClusterClient, tier: str) -> float:
    return cluster.metrics().total("warmlane_hit_tokens_total", tier=tier)


def burst(cluster: ClusterClient, document: list[int], num_questions: int) -> list[str]:
    """Questions about one document, all at once; their answers."""
    with ThreadPoolExecutor(num_questions) as clients:
        answers = clients.map(
            lambda number: cluster.complete([*document, 500 + number], max_tokens=12, ignore_eos=True),
            range(num_questions),
        )
        return [answer.text for answer in answers]


def test_a_hot_document_is_computed_once_and_copied(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    document = unseen_prompt(DOCUMENT_TOKENS)
    before = hits(cluster, "peer")
    cluster.complete(document, max_tokens=1)
    cluster.wait_idle()
    first = burst(cluster, document, 8)
    cluster.wait_idle()
    assert hits(cluster, "peer") - before >= cacheable_tokens(DOCUMENT_TOKENS) - 16
    assert burst(cluster, document, 8) == first
    explained = cluster.http.post("/v1/explain", json=cluster.completion_body(document)).json()["data"][0]
    assert all(cache["reusable_tokens"] >= cacheable_tokens(DOCUMENT_TOKENS) - 16 for cache in explained["caches"])


def test_evicted_pages_come_back_from_the_hosts_memory(
    cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """Six documents of 62 blocks over two pools of 200."""
    documents = [unseen_prompt(DOCUMENT_TOKENS) for _ in range(8)]
    texts = [cluster.complete(document, max_tokens=4, ignore_eos=True).text for document in documents]
    before = hits(cluster, "host")
    assert [cluster.complete(document, max_tokens=4, ignore_eos=True).text for document in documents] == texts
    cluster.wait_idle()
    assert hits(cluster, "host") > before
    panels = [query.raw for query in dashboard_queries() if query.source in OF_COLDER_TIERS]
    assert len(panels) == len(OF_COLDER_TIERS)
    for name in (name for expr in panels for name in re.findall(r"warmlane_\w+", expr)):
        assert cluster.metrics().by_label(name, "tier")["host"] > 0, name

    assert cluster.http.post("/admin/reset_prefix_cache", json={}).status_code == 200
    assert cluster.metrics().total("warmlane_kv_tier_bytes") == 0
    assert cluster.complete(documents[0], max_tokens=4, ignore_eos=True).cached_tokens == 0


@pytest.mark.long
def test_a_giver_that_is_killed_costs_no_answer(
    cluster: ClusterClient, cluster_process: ClusterProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    document = unseen_prompt(DOCUMENT_TOKENS)
    expected = burst(cluster, document, 6)
    engines = [process for process in cluster_process.processes() if is_engine(process)]
    with ThreadPoolExecutor(1) as other:
        answers = other.submit(burst, cluster, document, 6)
        engines[0].send_signal(signal.SIGKILL)
        assert answers.result() == expected
    cluster.wait_until(lambda: len(cluster.replicas()) == 2, "the killed replica is replaced", 120.0)


def is_engine(process: psutil.Process) -> bool:
    return re.match(r"ray::ServeReplica:\w+:Replica", " ".join(process.cmdline())) is not None


@pytest.mark.long
def test_a_cluster_that_starts_again_is_warm(
    model_dir: Path, tmp_path: Path, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """What was asked for twice lies on disk, also what never left the pools, and also where nothing could be said at
    the end."""
    document = unseen_prompt(DOCUMENT_TOKENS)
    arguments = ("--replicas", "1", "--max-model-len", "2048", "--disk-kv-folder", str(tmp_path / "pages"))
    with running_cluster(arguments, tmp_path) as process:
        cluster = ClusterClient(process.base_url)
        text = cluster.complete(document, max_tokens=4, ignore_eos=True).text
        assert cluster.complete(document, max_tokens=4, ignore_eos=True).text == text
        wanted = cacheable_tokens(DOCUMENT_TOKENS) * TOKEN_BYTES
        cluster.wait_until(
            lambda: cluster.metrics().total("warmlane_kv_tier_bytes", tier="disk") >= wanted, "all is written", 60.0
        )
        for engine in process.processes():
            if is_engine(engine):
                engine.kill()
    with running_cluster(arguments, tmp_path) as process:
        cluster = ClusterClient(process.base_url)
        again = cluster.complete(document, max_tokens=4, ignore_eos=True)
        assert (again.text, again.cached_tokens) == (text, cacheable_tokens(DOCUMENT_TOKENS))
        cluster.wait_idle()
        assert hits(cluster, "disk") == cacheable_tokens(DOCUMENT_TOKENS)

"""`serve deploy` on a cluster whose replicas give each other pages: updates, scale-ups and scale-downs keep them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster_client import ClusterClient, cacheable_tokens
from tests.e2e.deployed_cluster import DeployedCluster
from tests.e2e.test_rolling_deploy import is_ready
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

NUM_TOKENS = 400


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_update_a_scale_up_and_a_scale_down_keep_the_pages(
    model_dir: Path, tmp_path: Path, valkey: ValkeyProcess, unseen_prompt: Callable[[int], list[int]]
) -> None:
    documents = [unseen_prompt(NUM_TOKENS) for _ in range(4)]
    settings = {
        "model": str(model_dir), "num_blocks": 600, "max_num_seqs": 4, "threads_per_replica": 1, "pull": True,
        "redis_url": valkey.url,
    }  # fmt: skip
    deployed = DeployedCluster(tmp_path / "ray.log")
    try:
        deployed.start()
        deployed.deploy(settings, 2)
        first = deployed.wait_running(2)
        wait_until(lambda: is_ready(deployed.base_url), "the cluster is ready", 180.0)
        client = ClusterClient(deployed.base_url)
        texts = [client.complete(document, max_tokens=4, ignore_eos=True).text for document in documents * 2][:4]

        changed = settings | {"max_num_seqs": 3}
        deployed.deploy(changed, 2)
        deployed.wait_running(2, first["Replica"])
        assert_warm(client, documents, texts)

        deployed.deploy(changed, 1)
        deployed.wait_running(1)
        assert_warm(client, documents, texts)

        deployed.deploy(changed, 2)
        deployed.wait_running(2)
        explained = client.http.post("/v1/explain", json=client.completion_body(documents[0])).json()["data"][0]
        assert [cache["reusable_tokens"] for cache in explained["caches"]] == [cacheable_tokens(NUM_TOKENS)] * 2
    finally:
        deployed.stop()


def assert_warm(client: ClusterClient, documents: list[list[int]], texts: list[str]) -> None:
    answers = [client.complete(document, max_tokens=4, ignore_eos=True) for document in documents]
    assert [answer.text for answer in answers] == texts
    assert [answer.cached_tokens for answer in answers] == [cacheable_tokens(NUM_TOKENS)] * len(documents)

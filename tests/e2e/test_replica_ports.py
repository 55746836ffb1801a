"""The replicas' own API on loopback, for other routers in front of the same replicas."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.e2e.cluster_client import ClusterClient, cacheable_tokens
from tests.e2e.conftest import REPLICA_API_KEY


@pytest.fixture
def ports(cluster: ClusterClient) -> Iterator[list[httpx.Client]]:
    """A client for each replica's own port."""
    urls = cluster.metrics().by_label("warmlane_replica_api_info", "url")
    headers = {"authorization": f"Bearer {REPLICA_API_KEY}"}
    clients = [httpx.Client(base_url=url, headers=headers, timeout=60.0) for url in urls]
    yield clients
    for client in clients:
        client.close()


def test_each_replica_has_a_port_on_loopback(cluster: ClusterClient, ports: list[httpx.Client]) -> None:
    assert len(ports) == len(cluster.replicas())
    for port in ports:
        assert port.base_url.host == "127.0.0.1"
        assert port.get("/health").status_code == 200
        assert port.get("/v1/models").json()["data"][0]["id"] == cluster.model


def test_what_came_over_a_port_is_a_hit_for_the_cluster(
    cluster: ClusterClient, ports: list[httpx.Client], unseen_prompt: Callable[[int], list[int]]
) -> None:
    """One engine, one cache, one index: the router hears of pages that another way in has left."""
    prompt = unseen_prompt(200)
    body = cluster.completion_body(prompt, max_tokens=8)
    direct = ports[0].post("/v1/completions", json=body).json()
    assert direct["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    def indexed() -> bool:
        (explained,) = cluster.http.post("/v1/explain", json=body).json()["data"]
        return explained["predicted_hit_tokens"] >= cacheable_tokens(200)

    cluster.wait_until(indexed, "the router's index has the prompt's pages")
    answer = cluster.complete(prompt, max_tokens=8)
    assert answer.text == direct["choices"][0]["text"]
    assert answer.cached_tokens == cacheable_tokens(200)


def test_counts_stand_in_the_replicas_own_metrics_and_in_the_clusters(
    cluster: ClusterClient, ports: list[httpx.Client], unseen_prompt: Callable[[int], list[int]]
) -> None:
    before = cluster.wait_idle()
    ports[0].post("/v1/completions", json=cluster.completion_body(unseen_prompt(50), max_tokens=3))
    grown = cluster.wait_idle().since(before)
    assert grown.total("warmlane_prompt_tokens_total") == 50
    assert grown.total("warmlane_generated_tokens_total") == 3
    assert "warmlane_prompt_tokens_total" in ports[0].get("/metrics").text

"""The dashboard and the alert rules on a live cluster, read by a real Prometheus."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.dashboard import OF_COLDER_TIERS, alert_queries, dashboard_queries, variable_queries
from tests.deploy.prometheus_server import PrometheusServer
from tests.e2e.cluster_client import ClusterClient

RATE_INTERVAL, RANGE = "15s", "5m"
# These have no series while nothing is wrong; those of colder tiers are looked at in test_pages_between_replicas.py.
MAY_BE_EMPTY = OF_COLDER_TIERS | {
    "Loads that failed A",
    "Index resyncs and drift A",
    "Fallbacks and dropped records A",
    "Fallbacks and dropped records B",
    "Fallbacks and dropped records C",
    "Fallbacks and dropped records D",
    "Fallbacks and dropped records E",
    "Processes that could not be read A",
}


@pytest.fixture
def prometheus(cluster: ClusterClient, tmp_path: Path) -> Iterator[PrometheusServer]:
    with PrometheusServer(cluster.base_url.removeprefix("http://"), tmp_path) as server:
        server.wait_until(lambda: server.query("warmlane_prompt_tokens_total"), "the first scrape is in")
        yield server


def test_c45_every_query_of_the_dashboard_and_the_alerts_runs_on_a_live_cluster(
    prometheus: PrometheusServer, cluster: ClusterClient, unseen_prompt: Callable[[int], list[int]]
) -> None:
    """Queries of metrics or labels that do not exist give no error, only no data; so data is asked for."""
    prompt = unseen_prompt(64)
    missing = {query.source: query.expr for query in dashboard_queries(rate_interval=RATE_INTERVAL, range_=RANGE)}

    def all_had_data() -> bool:
        cluster.complete(prompt, max_tokens=3)
        for source in [source for source, expr in missing.items() if has_number(prometheus.query(expr))]:
            del missing[source]
        # A panel may be empty of growth until two scrapes lie around a hit.
        grown = prometheus.query("sum(increase(warmlane_hit_tokens_total[5m]))")  # nothing before the first scrape
        return set(missing) <= MAY_BE_EMPTY and bool(grown) and float(grown[0]["value"][1]) > 0

    prometheus.wait_until(all_had_data, lambda: f"hits grow and every panel has data; these have none: {missing}")


def has_number(series: list[dict]) -> bool:
    return any(one["value"][1] != "NaN" for one in series)


def test_the_variables_list_what_the_cluster_runs(prometheus: PrometheusServer, cluster: ClusterClient) -> None:
    values = {name: {one[label] for one in prometheus.series(selector)} for name, selector, label in variable_queries()}
    assert values == {"model": {cluster.model}, "replica": cluster.replicas(), "policy": {"expected_finish"}}


def test_the_alerts_are_evaluated_and_quiet(prometheus: PrometheusServer) -> None:
    prometheus.wait_until(
        lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), "every alert rule was evaluated"
    )
    assert len(prometheus.rules()) == len(alert_queries())
    assert {rule["name"]: rule["state"] for rule in prometheus.rules() if rule["state"] != "inactive"} == {}

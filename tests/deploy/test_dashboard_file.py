"""The dashboard's JSON: valid for Grafana, and made only of metrics that Warmlane has."""

import json
import re
from itertools import combinations
from pathlib import Path

import jsonschema
import yaml

from tests.deploy.dashboard import DEPLOY_DIR, alert_queries, dashboard_queries, load_dashboard, variable_queries

COUNTERS = {
    "warmlane_prompt_tokens_total": set(),
    "warmlane_generated_tokens_total": set(),
    "warmlane_hit_tokens_total": {"tier"},
    "warmlane_prefill_saved_tokens_total": set(),
    "warmlane_prefill_saved_seconds_total": set(),
    "warmlane_recomputed_tokens_total": set(),
    "warmlane_requests_total": {"finish_reason"},
    "warmlane_preemptions_total": set(),
    "warmlane_kv_events_total": {"kind"},
    "warmlane_load_bytes_total": {"tier"},
    "warmlane_load_seconds_total": {"tier"},
    "warmlane_failed_loads_total": {"cause"},
    "warmlane_route_decisions_total": {"policy", "outcome"},
    "warmlane_route_predicted_hit_tokens_total": {"policy"},
    "warmlane_route_reachable_hit_tokens_total": {"policy"},
    "warmlane_index_resyncs_total": {"reason"},
    "warmlane_index_drift_blocks_total": set(),
    "warmlane_route_fallbacks_total": {"reason"},
    "warmlane_route_adapter_fallbacks_total": {"reason"},
    "warmlane_side_channel_failures_total": {"reason"},
    "warmlane_index_dropped_records_total": {"reason"},
}
HISTOGRAMS = {
    "warmlane_queue_seconds": set(),
    "warmlane_ttft_seconds": set(),
    "warmlane_inter_token_seconds": set(),
    "warmlane_request_seconds": set(),
    "warmlane_route_seconds": {"policy", "phase"},
}
GAUGES = {
    "warmlane_running_requests": set(),
    "warmlane_waiting_requests": set(),
    "warmlane_kv_blocks": {"state"},
    "warmlane_kv_tier_bytes": {"tier"},
    "warmlane_index_blocks": set(),
    "warmlane_index_refused_blocks": set(),
    "warmlane_index_staleness_seconds": set(),
    "warmlane_router_rung": set(),
    "warmlane_scrape_failed": set(),
}


def test_dashboard_is_valid_for_grafana() -> None:
    schema = json.loads((Path(__file__).parent / "grafana_dashboard.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(load_dashboard())


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = load_dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
    for one, other in combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart, (one["title"], other["title"])


def test_the_variables_are_model_replica_and_policy() -> None:
    assert [name for name, _, _ in variable_queries()] == ["model", "replica", "policy"]


def test_every_metric_and_label_is_one_that_warmlane_has() -> None:
    known = {f"{name}{suffix}": labels | {"le"} for name, labels in HISTOGRAMS.items() for suffix in ("_bucket",)}
    known |= COUNTERS | GAUGES
    seen = set()
    for query in dashboard_queries() + alert_queries():
        for name, _, selector in re.findall(r"(warmlane_\w+)(\{([^}]*)\})?", query.expr):
            assert name in known, f"{query.source}: {name}"
            seen.add(name.removesuffix("_bucket"))
            labels = set(re.findall(r"(\w+)=", selector))
            assert labels <= known[name] | {"model", "process", "replica"}, f"{query.source}: {labels}"
    assert set(COUNTERS) | set(HISTOGRAMS) | set(GAUGES) == seen, "a metric stands on no panel"


def test_rates_are_taken_before_sums() -> None:
    """A sum over processes falls when one dies, and its rate would see a reset; the rate of each series does not."""
    for query in dashboard_queries() + alert_queries():
        for name in re.findall(r"warmlane_\w+(?:_total|_bucket)\b", query.expr):
            inside = re.findall(rf"(rate|increase)\({name}(?:\{{[^}}]*\}})?\[", query.expr)
            uses = len(re.findall(rf"\b{name}\b", query.expr))
            assert len(inside) == uses, f"{query.source}: {name} is not directly under rate or increase"


def test_provisioning_names_what_the_dashboard_uses() -> None:
    provisioning = DEPLOY_DIR / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    variable = next(v for v in load_dashboard()["templating"]["list"] if v["type"] == "datasource")
    assert variable["query"] == source["type"]
    assert variable["current"]["value"] == source["uid"]
    scrape = yaml.safe_load((DEPLOY_DIR / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape

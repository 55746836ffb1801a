"""Reads the dashboard and the alert rules as the tests need them: plain PromQL, each with the place it comes from."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY_DIR = Path(__file__).parents[2] / "deploy"
DASHBOARD_PATH = DEPLOY_DIR / "grafana/dashboards/warmlane.json"
ALERTS_PATH = DEPLOY_DIR / "prometheus/alerts.yml"

OF_COLDER_TIERS = {"Brought in (bytes) A", "Brought in (seconds per second) A", "Colder tiers A"}
"""Queries that have no data where no page lies outside a replica's own pool."""


@dataclass(frozen=True)
class Query:
    """expr: PromQL without Grafana's variables. raw: as it stands in the file."""

    source: str
    expr: str
    raw: str


def load_dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD_PATH.read_text(encoding="utf-8"))


def without_variables(expr: str, *, rate_interval: str, range_: str) -> str:
    """What Grafana sends with every variable at All. Raises ValueError for a variable that it would not know."""
    values = {"$__rate_interval": rate_interval, "$__range": range_}
    values |= {f"${name}": ".*" for name in ("model", "replica", "policy")}
    for variable in sorted(values, key=len, reverse=True):
        expr = expr.replace(variable, values[variable])
    if "$" in expr:
        raise ValueError(f"unknown Grafana variable in {expr!r}")
    return expr


def dashboard_queries(*, rate_interval: str = "1m", range_: str = "15m") -> list[Query]:
    return [
        Query(
            source=f"{panel['title']} {target['refId']}",
            expr=without_variables(target["expr"], rate_interval=rate_interval, range_=range_),
            raw=target["expr"],
        )
        for panel in load_dashboard()["panels"]
        for target in panel.get("targets", [])
    ]


def variable_queries() -> list[tuple[str, str, str]]:
    """Of each query variable its name, the series selector and the label whose values it lists."""
    found = []
    for variable in load_dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            if match is None:
                raise ValueError(f"variable {variable['name']} is no label_values(selector, label)")
            selector = without_variables(match[1], rate_interval="1m", range_="1m")
            found.append((variable["name"], selector, match[2]))
    return found


def alert_queries() -> list[Query]:
    groups = yaml.safe_load(ALERTS_PATH.read_text(encoding="utf-8"))["groups"]
    return [Query(rule["alert"], rule["expr"], rule["expr"]) for group in groups for rule in group["rules"]]

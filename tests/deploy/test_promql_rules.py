"""Alert rules and dashboard queries on series that we wrote, computed by Prometheus' own test runner."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dashboard import DEPLOY_DIR, dashboard_queries

TESTS_DIR = Path(__file__).parent


@pytest.fixture
def promtool() -> str:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed (Debian and Ubuntu: apt-get install prometheus)")
    return path


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_its_configuration(promtool: str) -> None:
    run(promtool, "check", "config", DEPLOY_DIR / "prometheus/prometheus.yml")


def test_each_alert_fires_on_its_fault_and_on_nothing_else(promtool: str) -> None:
    run(promtool, "test", "rules", TESTS_DIR / "alerts_test.yml")


def panel_expr(source: str) -> str:
    return next(query.expr for query in dashboard_queries(rate_interval="1m", range_="10m") if query.source == source)


def test_numbers_survive_the_death_of_a_process(promtool: str, tmp_path: Path) -> None:
    """r1 dies at 5 min with 600 hit tokens on its counter and comes back as another process that counts from zero."""
    names = 'model="m",replica="r1"'
    series = [
        (f'warmlane_hit_tokens_total{{{names},process="r1#1",tier="device"}}', "0+30x20 stale"),
        (f'warmlane_hit_tokens_total{{{names},process="r1#2",tier="device"}}', "_x20 0+30x20"),
        (f'warmlane_prompt_tokens_total{{{names},process="r1#1"}}', "0+60x20 stale"),
        (f'warmlane_prompt_tokens_total{{{names},process="r1#2"}}', "_x20 0+60x20"),
        ('warmlane_route_decisions_total{model="m",process="i1",policy="p",outcome="warm"}', "0+7x40"),
    ]
    expected = [
        # 30 tokens in 15 s are 2 a second, before the death and after it.
        ("Hit tokens A", "4m", '{replica="r1"}', 2.0),
        ("Hit tokens A", "9m", '{replica="r1"}', 2.0),
        # The old process's 600 tokens stay in the range's total: 600 + 570 of the new one by 9 min 45 s.
        ("Hit ratio A", "10m", "{}", 0.5),
        ("Hit ratio by tier A", "9m", '{model="m", tier="device"}', 0.5),
        ("Hit ratio by policy A", "9m", '{policy="p"}', 0.5),
    ]
    document: dict[str, Any] = {
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {"expr": panel_expr(source), "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}
                    for source, at, labels, value in expected
                ],
            }
        ],
    }
    path = tmp_path / "death.yml"
    path.write_text(yaml.safe_dump(document))
    run(promtool, "test", "rules", path)


def test_two_policies_at_once_break_no_panel(promtool: str, tmp_path: Path) -> None:
    """While an ingress with a new policy replaces the old one, both are scraped; the busier one counts."""
    bucket = 'warmlane_ttft_seconds_bucket{model="m",replica="r1",process="r1#1",le='
    decisions = 'warmlane_route_decisions_total{model="m",outcome="warm",'
    document = {
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [
                    {"series": f'{decisions}process="i1",policy="old"}}', "values": "0+1x40"},
                    {"series": f'{decisions}process="i2",policy="new"}}', "values": "0+3x40"},
                    {"series": f'{bucket}"1"}}', "values": "0+1x40"},
                    {"series": f'{bucket}"+Inf"}}', "values": "0+1x40"},
                ],
                "promql_expr_test": [
                    {
                        "expr": panel_expr("Time to first token by policy A"),
                        "eval_time": "5m",
                        "exp_samples": [{"labels": '{policy="new"}', "value": 0.5}],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "policies.yml"
    path.write_text(yaml.safe_dump(document))
    run(promtool, "test", "rules", path)

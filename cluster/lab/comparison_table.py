"""A comparison for the terminal."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from rich.console import Group
from rich.table import Table

from cluster.lab.arm_runs import ArmRuns
from cluster.lab.comparison import Comparison
from cluster.lab.scenario import Scenario


def comparison_table(comparison: Comparison) -> Group:
    """What was reused and what it did to the times, in two tables of 80 columns. The best of a column is bold."""
    arms = comparison.arms
    heading = f"{title(comparison.scenario)}\n{caption(comparison.scenario)}"
    reuse = Table(title=heading, title_justify="left", padding=(0, 0, 0, 1))
    _fill(
        reuse,
        arms,
        [
            ("hit tokens", lambda arm: arm.hit_tokens, "{:,.0f}".format, max),
            ("of all", lambda arm: arm.hit_tokens / arm.prompt_tokens, "{:.1%}".format, max),
            ("prefill saved, s", lambda arm: arm.prefill_saved_seconds, "{:,.0f}".format, max),
            ("busiest/mean", lambda arm: arm.busiest_over_mean, "{:.2f}".format, min),
        ],
    )
    times = Table(title="Seconds, each as p50, p95 and p99", title_justify="left", padding=0)
    _fill(
        times,
        arms,
        [
            (name if percent == 50 else f"p{percent}", _percentile(name.lower(), percent), _three_digits, min)
            for name in ("TTFT", "total", "queue")
            for percent in (50, 95, 99)
        ],
    )
    return Group(reuse, times, *_distances(comparison))


def title(scenario: Scenario) -> str:
    drive = f"closed loop of {scenario.num_users}"
    if scenario.num_users < scenario.concurrency:
        drive += f" ({scenario.concurrency} asked for, as many as there are sessions)"
    if scenario.rate is not None:
        drive = f"{scenario.rate:.2f} requests/s, open loop, {scenario.arrivals}"
    if scenario.load is not None:
        drive += f" ({scenario.load:.0%} of what a pooled-cache oracle serves)"
    return (
        f"{scenario.trace.name}: {len(scenario.trace.requests)} requests, "
        f"{scenario.config.num_replicas} replicas, {drive}"
    )


def caption(scenario: Scenario) -> str:
    floor = ", raised so that each replica holds the longest request" if scenario.cache.at_floor else ""
    oracle = ""
    if scenario.load is not None:
        oracle = f" The oracle hits {scenario.oracle_hit_tokens / scenario.trace.num_prompt_tokens:.1%}."
    return (
        f"Fleet cache: {scenario.cache.share:.0%} of the unique prompt blocks{floor}.{oracle} "
        f"Simulated; step times: {scenario.cost_model.origin}."
    )


_Column = tuple[str, Callable[[ArmRuns], float], Callable[[float], str], Callable[[Sequence[float]], float]]
"""Heading, value, how it is written, and which of the values is the best."""


def _fill(table: Table, arms: Sequence[ArmRuns], columns: Sequence[_Column]) -> None:
    table.add_column("policy", no_wrap=True)
    rows = [[arm.policy] for arm in arms]
    for name, value_of, write, best_of in columns:
        table.add_column(name, justify="right", no_wrap=True)
        values = [value_of(arm) for arm in arms]
        for row, value in zip(rows, values, strict=True):
            text = write(value)
            row.append(f"[bold]{text}[/bold]" if value == best_of(values) else text)
    for row in rows:
        table.add_row(*row)


def _percentile(name: str, percent: float) -> Callable[[ArmRuns], float]:
    return lambda arm: arm.percentile(f"{name}_seconds", percent)


def _three_digits(seconds: float) -> str:
    decimals = 0 if seconds >= 100.0 else 1 if seconds >= 10.0 else 2 if seconds >= 1.0 else 3
    return f"{seconds:,.{decimals}f}"


def _distances(comparison: Comparison) -> list[str]:
    """Where the arms stand in TTFT p99, from the first on."""
    ranked = sorted(comparison.arms, key=lambda arm: arm.percentile("ttft_seconds", 99))
    lines = [f"TTFT p99: {ranked[0].policy} is first. Behind it, with 95 % intervals of the paired bootstrap:"]
    width = max(len(arm.policy) for arm in ranked)
    for _, arm in pairwise(ranked):
        distance = comparison.behind_first(arm)
        noise = " (may be chance)" if distance.holds_zero else ""
        lines.append(
            f"  {arm.policy:<{width}} +{distance.value:.2f} s ({distance.low:.2f} to {distance.high:.2f}){noise}"
        )
    return lines if len(ranked) > 1 else []

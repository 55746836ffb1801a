"""Comparisons as one HTML file that needs nothing beside it."""

import io
import math
from collections.abc import Sequence
from html import escape

import matplotlib
import numpy as np

from cluster.lab.arm_runs import ArmRuns
from cluster.lab.comparison import Comparison
from cluster.lab.comparison_table import caption, title

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.ticker import LogFormatter

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c2330; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #d9dee7; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.best td { font-weight: 600; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
p.note { color: #5a6579; }
.wide { overflow-x: auto; }
"""
_HEADINGS = (
    "policy", "hit tokens", "hit share", "prefill saved, s", "TTFT p50", "p95", "p99", "total p50", "p95", "p99",
    "queue p50", "p99", "busiest / mean", "TTFT p99 behind the first [95 %]",
)  # fmt: skip


def comparison_page(comparisons: Sequence[Comparison]) -> str:
    """The same comparisons give the same text."""
    sections = "\n".join(_section(comparison) for comparison in comparisons)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Routing policies compared</title>'
        f"<style>{_STYLE}</style></head><body><h1>Routing policies compared</h1>\n{sections}\n</body></html>\n"
    )


def _section(comparison: Comparison) -> str:
    rows = "\n".join(_row(comparison, arm) for arm in comparison.arms)
    head = "".join(f"<th>{escape(name)}</th>" for name in _HEADINGS)
    return (
        f"<h2>{escape(title(comparison.scenario))}</h2>\n"
        f'<p class="note">{escape(caption(comparison.scenario))} '
        f"Seeds {', '.join(map(str, comparison.seeds))}; times in seconds.</p>\n"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>\n'
        f"<figure>{_plots(comparison)}</figure>"
    )


def _row(comparison: Comparison, arm: ArmRuns) -> str:
    distance = comparison.behind_first(arm)
    values = [
        escape(arm.policy),
        f"{arm.hit_tokens:,}",
        f"{arm.hit_tokens / arm.prompt_tokens:.1%}",
        f"{arm.prefill_saved_seconds:,.0f}",
        *(f"{arm.percentile('ttft_seconds', percent):.2f}" for percent in (50, 95, 99)),
        *(f"{arm.percentile('total_seconds', percent):.2f}" for percent in (50, 95, 99)),
        *(f"{arm.percentile('queue_seconds', percent):.2f}" for percent in (50, 99)),
        f"{arm.busiest_over_mean:.2f}",
        f"{distance.value:.2f} [{distance.low:.2f}, {distance.high:.2f}]",
    ]
    best = ' class="best"' if arm is comparison.first else ""
    return f"<tr{best}>{''.join(f'<td>{value}</td>' for value in values)}</tr>"


def _plots(comparison: Comparison) -> str:
    """Left: the distribution of TTFT. Right: hit share against TTFT p99."""
    with matplotlib.rc_context({"svg.hashsalt": "warmlane", "font.size": 9, "svg.fonttype": "none"}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
        colors = plt.get_cmap("tab20" if len(comparison.arms) > 10 else "tab10")
        latest = [arm.percentile("ttft_seconds", 99) for arm in comparison.arms]
        middle = math.sqrt(min(latest) * max(latest))  # of the logarithmic axis: names are written towards it
        for number, arm in enumerate(comparison.arms):
            times = np.sort([outcome.ttft_seconds for outcome in arm.outcomes])
            shares = np.arange(1, len(times) + 1) / len(times)
            left.plot(np.maximum(times, 1e-3), shares, color=colors(number % colors.N), label=arm.policy, linewidth=1.2)
            right.scatter(
                arm.percentile("ttft_seconds", 99), arm.hit_tokens / arm.prompt_tokens, color=colors(number % colors.N)
            )
            right.annotate(
                arm.policy,
                (arm.percentile("ttft_seconds", 99), arm.hit_tokens / arm.prompt_tokens),
                xytext=(-4, 3) if arm.percentile("ttft_seconds", 99) > middle else (4, 3),
                ha="right" if arm.percentile("ttft_seconds", 99) > middle else "left",
                textcoords="offset points",
                fontsize=7,
            )
        left.set(xscale="log", xlabel="TTFT, s", ylabel="share of the requests", title="Time to the first token")
        right.set(
            xscale="log", xlabel="TTFT p99, s", ylabel="share of prompt tokens hit", title="Up and left is better"
        )
        left.legend(fontsize=7)
        for axes in (left, right):
            axes.grid(alpha=0.25)
            axes.xaxis.set_major_formatter("{x:g}")
        right.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]

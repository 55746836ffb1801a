"""An answer of `/v1/explain` as tables: what the policy compared, and what each replica holds of the prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

STRIP_COLUMNS = 40
SIGNS = {"reusable": "█", "equal": "▒", "different": "░"}


def heading(explanation: Mapping[str, Any]) -> str:
    num_tokens, block_size = explanation["num_tokens"], explanation["block_size"]
    num_blocks = -(-num_tokens // block_size)
    return (
        f"{num_tokens:,} tokens in {num_blocks:,} blocks of {block_size}. {explanation['policy']} would take "
        f"{explanation['replica_id']} ({explanation['outcome']}, index {explanation['rung']}): {explanation['reason']}"
    )


def scores_table(explanation: Mapping[str, Any]) -> Table:
    """A row for each replica, as the router sees it: score, its parts where the policy has some, load."""
    scores = explanation["scores"]
    parts = list(dict.fromkeys(name for score in scores for name in score.get("parts", ())))
    table = Table(title="What the policy compares (the lowest score wins)", title_justify="left")
    table.add_column("replica")
    for name in ("score", *parts, "running", "waiting", "queued tokens", "hit, by the index"):
        table.add_column(name, justify="right")
    for score in scores:
        of_parts = score.get("parts", {})
        table.add_row(
            _name(score["replica_id"], explanation),
            _number(score["score"]),
            *(_number(of_parts.get(name)) for name in parts),
            f"{score['num_running']:,}",
            f"{score['num_waiting']:,}",
            f"{score['queued_prefill_tokens']:,}",
            f"{score['hit_blocks'] * explanation['block_size']:,}",
        )
    return table


def plans_table(explanation: Mapping[str, Any]) -> Table | None:
    """A row for each replica: where its tokens would come from, and how long that takes. None where nothing would be
    moved anywhere."""
    scores, block_size = explanation["scores"], explanation["block_size"]
    if not any(score.get("pull_tokens") or score.get("restore_seconds") for score in scores):
        return None
    table = Table(title="Where the tokens would come from, by the index", title_justify="left")
    table.add_column("replica")
    for name in ("device", "host", "disk", "restoring s", "could take", "of", "taking s", "rest"):
        table.add_column(name, justify="right")
    for score in scores:
        host, disk = (score.get(f"{tier}_blocks", 0) * block_size for tier in ("host", "disk"))
        hit, taken = score["hit_blocks"] * block_size, score.get("pull_tokens", 0)
        table.add_row(
            _name(score["replica_id"], explanation),
            f"{hit - host - disk:,}",
            f"{host:,}",
            f"{disk:,}",
            _number(score.get("restore_seconds")),
            f"{taken:,}",
            score.get("pull_from", "-"),
            _number(score.get("pull_seconds")),
            f"{explanation['num_tokens'] - hit - taken:,}",
        )
    return table


def caches_table(explanation: Mapping[str, Any]) -> Table:
    """A row for each replica, as it answered itself, with the prompt as a strip."""
    signs = ", ".join(f"{sign} {state}" for state, sign in SIGNS.items())
    table = Table(title=f"What each cache holds ({signs})", title_justify="left")
    table.add_column("replica")
    table.add_column("prompt", no_wrap=True)
    for name in ("reusable", "to compute"):
        table.add_column(name, justify="right")
    table.add_column("tokens")
    for cache in explanation["caches"]:
        name = _name(cache["replica_id"], explanation)
        if cache["pages"] is None:
            table.add_row(name, "did not answer", "", "", "")
            continue
        table.add_row(
            name,
            strip(cache["pages"], explanation["num_tokens"]),
            f"{cache['reusable_tokens']:,}",
            f"{cache['computed_tokens']:,}",
            "\n".join(map(_range, cache["pages"])),
        )
    return table


def strip(pages: Sequence[Mapping[str, Any]], num_tokens: int, width: int = STRIP_COLUMNS) -> str:
    """The runs in proportion, each with one sign at least, so that a handful of equal tokens shows."""
    spare = width - len(pages)
    counts = [1 + spare * run["num_tokens"] // num_tokens for run in pages]
    counts[max(range(len(pages)), key=lambda at: counts[at])] += width - sum(counts)
    return "".join(SIGNS[run["state"]] * count for run, count in zip(pages, counts, strict=True))


def _range(run: Mapping[str, Any]) -> str:
    """`reusable 0-1023 (64 blocks)`, or the block in which a part lies."""
    first, last = run["first_token"], run["first_token"] + run["num_tokens"] - 1
    if run["state"] == "equal":
        where = f"in block {run['first_block']}"
    else:
        where = "1 block" if run["num_blocks"] == 1 else f"{run['num_blocks']:,} blocks"
    return f"{run['state']} {first}-{last} ({where})"


def _name(replica_id: str, explanation: Mapping[str, Any]) -> str:
    return f"{'→' if replica_id == explanation['replica_id'] else ' '} {replica_id}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

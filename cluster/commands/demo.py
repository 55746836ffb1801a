"""`warmlane demo`: one multi-turn workload under two routing policies, each on a fresh cluster with cold caches."""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.config import ServeConfig
from cluster.lab.arm_result import ArmResult, differences_in_work
from cluster.lab.cluster_process import ClusterFailed, ClusterProcess
from cluster.lab.conversations import Conversation, load_conversations
from cluster.lab.load_client import LoadClient, RequestRecord
from cluster.lab.metrics_snapshot import MetricsSnapshot
from cluster.local.machine_check import check_gpus
from cluster.models.default_model import DEFAULT_MODEL, ModelUnavailable
from cluster.models.store import resolve_model

_READY_TIMEOUT_SECONDS = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=DEFAULT_MODEL, help="folder or hub id of the model (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=2, help="replicas of each cluster (default: %(default)s)")
    parser.add_argument("--baseline", default="round_robin", help="policy of the first arm (default: %(default)s)")
    parser.add_argument("--policy", default="expected_finish", help="policy of the second arm (default: %(default)s)")
    parser.add_argument("--users", type=int, default=4, help="conversations held at once (default: %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=16, help="tokens of each answer (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when both arms did the same work, else 1."""
    console = Console()
    try:
        _check(args)
        resolve_model(args.model, console)  # here and not in the cluster, where nobody would see the progress
    except (ModelUnavailable, ValueError) as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    conversations = load_conversations()
    num_requests = sum(len(conversation.exchanges) for conversation in conversations)
    console.print(
        f"{num_requests} requests in {len(conversations)} recorded conversations with {_num_groups(conversations)} "
        f"shared system prompts, {args.users} conversations at once, {args.max_tokens} tokens an answer.\n"
        "The next request of a conversation holds the recorded answer, so both arms do identical work.",
        soft_wrap=True,
    )
    with tempfile.TemporaryDirectory(prefix="warmlane-demo-") as folder, _progress(console) as progress:
        try:
            arms = [
                _run_arm(policy, args, conversations, Path(folder), progress) for policy in (args.baseline, args.policy)
            ]
        except ClusterFailed as error:
            console.print(f"warmlane: {error}", style="red", highlight=False, markup=False)
            return 1
    console.print(_table(*arms))
    return _verdict(console, *arms)


def _check(args: argparse.Namespace) -> None:
    """Both clusters' settings and this command's own, before anything starts. Raises ValueError."""
    for policy in (args.baseline, args.policy):
        check_gpus(ServeConfig.load({"model": args.model, "replicas": args.replicas, "policy": policy}))
    for name in ("users", "max_tokens"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(args, name)}")


def _run_arm(
    policy: str, args: argparse.Namespace, conversations: list[Conversation], folder: Path, progress: Progress
) -> ArmResult:
    num_requests = sum(len(conversation.exchanges) for conversation in conversations)
    task = progress.add_task(f"{policy}: starting a cluster", total=num_requests)
    arguments = ["--model", args.model, "--replicas", str(args.replicas), "--policy", policy]
    with ClusterProcess(arguments, output_path=folder / f"{policy}.log") as cluster:
        cluster.wait_ready(timeout_seconds=_READY_TIMEOUT_SECONDS)
        progress.update(task, description=f"{policy}: requests")
        result = asyncio.run(_measure(policy, args, conversations, cluster.base_url, lambda _: progress.advance(task)))
        progress.update(task, description=f"{policy}: stopping the cluster")
    progress.update(task, description=f"{policy}: done")
    return result


async def _measure(
    policy: str,
    args: argparse.Namespace,
    conversations: list[Conversation],
    base_url: str,
    on_record: Callable[[RequestRecord], None],
) -> ArmResult:
    async with httpx.AsyncClient(timeout=60.0, trust_env=False) as http:
        model = (await http.get(f"{base_url}/v1/models")).json()["data"][0]["id"]
        async with LoadClient(base_url, model, max_tokens=args.max_tokens) as client:
            await _warm_up(client, args.replicas)
            before = await MetricsSnapshot.read(http, base_url)
            start = time.perf_counter()
            records = await client.play(conversations, concurrency=args.users, on_record=on_record)
            wall_seconds = time.perf_counter() - start
        after = await MetricsSnapshot.read(http, base_url)
    return ArmResult(policy, records, after.since(before), wall_seconds)


async def _warm_up(client: LoadClient, num_replicas: int) -> None:
    """A process's first forward pass is slower than all others. These prompts share no block with the workload."""
    greetings = [f"{number}. Good morning." for number in range(2 * num_replicas)]
    await asyncio.gather(*(client.chat([{"role": "user", "content": text}]) for text in greetings))


def _table(*arms: ArmResult) -> Table:
    table = Table(title="One workload, two routing policies, cold caches", title_justify="left")
    table.add_column("")
    for arm in arms:
        table.add_column(arm.policy, justify="right")
    rows = {
        "requests completed": [f"{len(arm.completed)}" for arm in arms],
        "prompt tokens": [f"{arm.prompt_tokens:,}" for arm in arms],
        "hit tokens": [f"{arm.hit_tokens:,} ({_share(arm.hit_tokens, arm.prompt_tokens)})" for arm in arms],
        "prefill saved, tokens": [f"{arm.saved_tokens:,}" for arm in arms],
        "prefill saved, seconds": [f"{arm.saved_seconds:.1f}" for arm in arms],
        "prefill computed, tokens": [f"{arm.prompt_tokens - arm.saved_tokens:,}" for arm in arms],
        "TTFT p50 / p99, s": [f"{arm.ttft(50):.2f} / {arm.ttft(99):.2f}" for arm in arms],
        "total latency p50 / p99, s": [f"{arm.latency(50):.2f} / {arm.latency(99):.2f}" for arm in arms],
        "requests per replica": [" + ".join(map(str, arm.requests_per_replica)) for arm in arms],
        "whole workload, s": [f"{arm.wall_seconds:.1f}" for arm in arms],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _verdict(console: Console, baseline: ArmResult, other: ArmResult) -> int:
    console.print(
        "Tokens and seconds saved are the cluster's own counters (/metrics); latencies are the client's clock."
    )
    problems = differences_in_work(baseline, other)
    for problem in problems:
        console.print(f"Not comparable: {problem}", style="red", highlight=False, markup=False)
    if not problems:
        same = sum(a.text == b.text for a, b in zip(baseline.records, other.records, strict=True))
        console.print(
            f"Both arms did the same work: {baseline.prompt_tokens:,} prompt tokens and "
            f"{len(baseline.completed)} requests, {same} of them with the same greedy answer."
        )
    return 1 if problems else 0


def _progress(console: Console) -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<36}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _num_groups(conversations: list[Conversation]) -> int:
    return len({conversation.group for conversation in conversations})


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"

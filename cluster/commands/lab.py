"""`warmlane lab`: compares routing policies in simulation, and fits the simulation to a real engine."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from cache.eviction import EVICTIONS
from cluster.lab.arm_runs import run_arm
from cluster.lab.comparison import Comparison
from cluster.lab.comparison_table import comparison_table
from cluster.lab.cost_model import DEFAULT_COST_MODEL, CostModel
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.long_prefixes import LONG_PREFIXES
from cluster.lab.output_files import check_outputs
from cluster.lab.progress import request_progress
from cluster.lab.scenario import Scenario
from cluster.lab.simulated_router import PolicyFailed
from cluster.lab.trace import TextTokenizer, Trace
from cluster.lab.trace_files import BUNDLED, SYNTHETIC, load_trace
from cluster.lab.word_tokenizer import tokenize as word_tokenize
from cluster.models.default_model import DEFAULT_MODEL, ModelUnavailable
from cluster.setting_sources import expanded
from replica.config import EngineConfig
from router.policies.registry import POLICIES, make_policy

DEFAULT_CACHE_SHARE = 0.1
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "replicas": (1, 1024), "load": (0.001, 1000), "rate": (1e-6, 1e6), "concurrency": (1, 1e6),
    "think_seconds": (0, 1e6), "requests": (1, 1e9), "cache_share": (0, 1e6), "block_size": (1, 1024),
    "mooncake_block": (1, 512), "routers": (1, 1024), "index_delay": (0, 1e6), "event_loss": (0, 0.999),
    "step_noise": (0, 10), "slow_replicas": (0, 1024), "link_rate": (1, 1e15), "host_share": (0, 1e6),
}  # fmt: skip
"""Least and most of each number of `compare`. Written so that NaN is within none."""


def _file(text: str) -> Path:
    """Of a flag; a shell leaves `--json=~/x` as it is."""
    if not text:
        raise argparse.ArgumentTypeError("a file must have a name")
    try:
        return expanded(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_compare(actions.add_parser("compare", help="run one workload under several policies on a simulated fleet"))
    fit = actions.add_parser("fit", help="measure a real engine's step times, for --cost-model of compare")
    fit.add_argument("--model", default=DEFAULT_MODEL, help="folder or hub id of the model (default: %(default)s)")
    fit.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    fit.add_argument("--dtype", default="auto", choices=("auto", "float32", "float16", "bfloat16"))
    fit.add_argument("--threads", type=int, help="torch threads (default: all)")
    fit.add_argument("--out", type=_file, default=Path("cost-model.json"), help="default: %(default)s")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    names = ", ".join([*SYNTHETIC, *LONG_PREFIXES, *BUNDLED])
    parser.add_argument("--trace", required=True, help=f"a file (JSONL or CSV), or one of: {names}")
    parser.add_argument("--policies", default=",".join(POLICIES), help="with commas between (default: all)")
    parser.add_argument("--weights", action="append", default=[], metavar="POLICY.NAME=VALUE", help="may be repeated")
    parser.add_argument("--replicas", type=int, default=4)
    drive = parser.add_mutually_exclusive_group()
    drive.add_argument("--load", type=float, help="share of what a pooled-cache oracle serves (default: 0.8)")
    drive.add_argument("--rate", type=float, help="requests per second")
    drive.add_argument("--concurrency", type=int, help="closed loop of so many users instead of a rate")
    parser.add_argument(
        "--think-seconds", type=float, help="between two turns of a user, with --concurrency (default: 0)"
    )
    parser.add_argument("--requests", type=int, default=500, help="of the trace, from its start (default: %(default)s)")
    parser.add_argument("--seeds", default="1,2,3", help="with commas between (default: %(default)s)")
    parser.add_argument(
        "--cache-share",
        type=float,
        help=f"fleet's cache over the trace's unique blocks; 0: unbounded (default: {DEFAULT_CACHE_SHARE}, or what the "
        "longest request needs)",
    )
    parser.add_argument("--block-size", type=int, default=16, help="tokens of a block (default: %(default)s)")
    parser.add_argument(
        "--mooncake-block",
        type=int,
        help="tokens a block id of the trace stands for: to 512 in Mooncake's, to 16 in Bailian's (default: 16)",
    )
    parser.add_argument("--tokenizer", help="model whose tokenizer reads the texts (default: one that needs no model)")
    parser.add_argument("--cost-model", type=_file, help="JSON of `warmlane lab fit` (default: built-in numbers)")
    parser.add_argument("--routers", type=int, default=1)
    parser.add_argument(
        "--index-delay", type=float, default=0.05, help="seconds until routers know (default: %(default)s)"
    )
    parser.add_argument("--eviction", default="lru", choices=EVICTIONS, help="of cached pages (default: %(default)s)")
    parser.add_argument("--event-loss", type=float, default=0.0, help="share of event batches lost")
    parser.add_argument("--step-noise", type=float, default=0.2, help="of step times (default: %(default)s)")
    parser.add_argument("--slow-replicas", type=int, default=1, help="that take 30 %% longer (default: %(default)s)")
    parser.add_argument("--pull", action="store_true", help="replicas take pages from each other")
    parser.add_argument(
        "--link-rate", type=float, default=1.25e9, help="bytes a second of each replica's link (default: %(default)g)"
    )
    parser.add_argument(
        "--host-share", type=float, default=0.0,
        help="fleet's host memory for evicted pages over the trace's unique blocks (default: none)",
    )  # fmt: skip
    parser.add_argument("--json", type=_file, help="write the numbers here")
    parser.add_argument("--html", type=_file, help="write a page with plots here")


def run(args: argparse.Namespace) -> int:
    try:
        return _compare(args) if args.action == "compare" else _fit(args)
    except (ValueError, OSError, ModelUnavailable, PolicyFailed) as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1


def _compare(args: argparse.Namespace) -> int:
    console = Console()
    _check_numbers(args)
    policies, weights = _policies(args)
    seeds = _seeds(args.seeds)
    if args.think_seconds is not None and args.concurrency is None:
        raise ValueError("--think-seconds is a pause of the users of --concurrency: give both, or neither")
    read = {"--trace": expanded(args.trace), "--cost-model": args.cost_model}
    check_outputs({"--json": args.json, "--html": args.html}, read)
    if args.html:
        from cluster.lab.comparison_page import comparison_page  # takes a second to import, and may be missing
    cost_model = CostModel.read(args.cost_model) if args.cost_model else DEFAULT_COST_MODEL
    config = _fleet(args)
    trace = load_trace(
        args.trace,
        num_requests=args.requests,
        block_tokens=args.mooncake_block,
        tokenize=_tokenizer(args.tokenizer),
    )
    scenario = _scenario(args, trace, config, cost_model)
    num_requests = len(trace.requests) * len(seeds) * len(policies)
    with request_progress(console, num_requests) as progress:
        arms = []
        for policy in policies:
            progress.begin(policy)
            arms.append(run_arm(scenario, policy, weights.get(policy, {}), seeds, progress.advance))
    comparison = Comparison(scenario, arms, seeds)
    console.print(comparison_table(comparison))
    if args.json:
        args.json.write_text(json.dumps(comparison.to_dict(), indent=2) + "\n", encoding="utf-8")
    if args.html:
        args.html.write_text(comparison_page([comparison]), encoding="utf-8")
    return 0


def _check_numbers(args: argparse.Namespace) -> None:
    """Raises ValueError that names the flag, before a trace is read."""
    for name, (low, high) in _BOUNDS.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            raise ValueError(
                f"--{name.replace('_', '-')} must be between {low:,.10g} and {high:,.10g}, got {value:,.10g}"
            )


def _policies(args: argparse.Namespace) -> tuple[list[str], dict[str, dict[str, float]]]:
    policies = list(dict.fromkeys(args.policies.split(",")))
    unknown = [name for name in policies if name not in POLICIES]
    if unknown:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {unknown[0]!r}")
    weights: dict[str, dict[str, float]] = {}
    for item in args.weights:
        name, _, value = item.partition("=")
        policy, _, weight = name.partition(".")
        if policy not in policies or not weight:
            raise ValueError(f"--weights wants POLICY.NAME=VALUE with a policy of the comparison, got {item!r}")
        try:
            weights.setdefault(policy, {})[weight] = float(value)
        except ValueError:
            raise ValueError(f"--weights wants a number for {name}, got {value!r}") from None
    for policy in policies:
        make_policy(policy, weights.get(policy, {}))  # unknown weights are refused before a trace is read
    return policies, weights


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be whole numbers with commas between, got {text!r}") from None
    if len(set(seeds)) < len(seeds):  # the same runs again would only make chance look small
        raise ValueError(f"--seeds must differ from each other, got {text!r}")
    return seeds


def _fleet(args: argparse.Namespace) -> FleetConfig:
    return FleetConfig(
        num_replicas=args.replicas,
        block_size=args.block_size,
        num_routers=args.routers,
        index_delay_seconds=args.index_delay,
        event_loss=args.event_loss,
        eviction=args.eviction,
        step_noise=args.step_noise,
        num_slow_replicas=args.slow_replicas,
        pull=args.pull,
        link_bytes_per_second=args.link_rate,
        host_share=args.host_share,
    )


def _scenario(args: argparse.Namespace, trace: Trace, config: FleetConfig, cost_model: CostModel) -> Scenario:
    share = DEFAULT_CACHE_SHARE if args.cache_share is None else args.cache_share or None
    only_default = args.cache_share is None  # what was asked for is kept or refused
    load = 0.8 if args.load is None else args.load
    if args.concurrency is not None:
        return Scenario.closed(
            trace, config, cost_model, share, args.concurrency, args.think_seconds or 0.0, only_default
        )
    if args.rate is not None:
        return Scenario.at_rate(trace, config, cost_model, share, args.rate, only_default)
    return Scenario.at_load(trace, config, cost_model, share, load, only_default)


def _tokenizer(model: str | None) -> TextTokenizer:
    if model is None:
        return word_tokenize
    from transformers import AutoTokenizer  # takes seconds to import

    from cluster.models.store import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(str(resolve_model(model, Console(stderr=True))), local_files_only=True)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _fit(args: argparse.Namespace) -> int:
    check_outputs({"--out": args.out})
    EngineConfig(model=args.model, device=args.device, dtype=args.dtype, threads=args.threads)  # refused before torch
    from cluster.lab.cost_fit import fit_cost_model  # imports torch
    from cluster.models.store import resolve_model

    console = Console()
    folder = resolve_model(args.model, console)
    fit = fit_cost_model(str(folder), args.device, args.dtype, args.threads, console)
    fit.cost_model.write(args.out)
    console.print(f"{args.out}: {fit.cost_model.origin}", highlight=False, markup=False)
    console.print(f"Median error over {fit.num_steps} measured steps: {fit.median_error:.0%}")
    return 0

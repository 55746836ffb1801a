"""`warmlane policy`: shows and changes the routing policy of a running cluster."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cluster.commands.cluster_call import ClusterRefused, ask_cluster, not_warmlane
from router.policies.registry import POLICIES

PATH = "/admin/policy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    url = argparse.ArgumentParser(add_help=False)
    url.add_argument("--url", default="http://127.0.0.1:8000", help="address of the cluster (default: %(default)s)")
    url.add_argument("--key-file", type=Path, help="file that holds the admin key, where the cluster has keys")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("show", parents=[url], help="the policy in force and its weights")
    setting = actions.add_parser(
        "set", parents=[url], help="change it in all ingresses, without a restart; weights not named get their defaults"
    )
    setting.add_argument("name", metavar="NAME", help=", ".join(POLICIES))
    setting.add_argument("weights", metavar="weight=value", nargs="*", help="weights of that policy")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 when the policy was refused or not all ingresses have it."""
    try:
        body = {"policy": args.name, "weights": parse_weights(args.weights)} if args.action == "set" else None
        answer = ask_cluster(args.url, PATH, body, args.key_file)
        if not {"policy", "weights", "ingresses", "errors", "agreed"} <= set(answer):
            raise ClusterRefused(not_warmlane(args.url, PATH, 200))
    except (ClusterRefused, ValueError) as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    Console().print(_table(answer))
    for problem in _problems(answer):
        print(f"warmlane: {problem}", file=sys.stderr)
    return 0 if answer["agreed"] else 1


def parse_weights(arguments: list[str]) -> dict[str, float]:
    """Raises ValueError for what is not name=number; NaN and infinity are none, for JSON has no way to say them."""
    weights: dict[str, float] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        try:
            weights[name] = float(value)
            if not (name and equals and math.isfinite(weights[name])):
                raise ValueError
        except ValueError:
            raise ValueError(f"a weight must be written as name=number, got {argument!r}") from None
    return weights


def _table(answer: dict[str, Any]) -> Table:
    ingresses = len(answer["ingresses"])
    table = Table(title=f"{answer['policy']}, in {ingresses} ingress{'es' if ingresses > 1 else ''}")
    table.title_justify = "left"
    table.add_column("weight")
    table.add_column("value", justify="right")
    table.add_column("default", justify="right")
    known = POLICIES.get(answer["policy"])
    for name, value in answer["weights"].items():
        default = known.default_weights.get(name) if known else None
        table.add_row(name, f"{value:g}", "" if default is None else f"{default:g}")
    return table


def _problems(answer: dict[str, Any]) -> list[str]:
    found = [f"an ingress did not answer: {error}" for error in answer["errors"]]
    for ingress in answer["ingresses"]:
        if (ingress["policy"], ingress["weights"]) != (answer["policy"], answer["weights"]):
            found.append(f"{ingress['process']} still has {ingress['policy']} {ingress['weights']}")
        if ingress["refused_user_config"]:
            found.append(f"{ingress['process']} refused its user_config: {ingress['refused_user_config']}")
    return found

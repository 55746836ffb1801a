"""`warmlane explain`: asks a running cluster where a request would go and what of it is cached where."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.commands.cluster_call import ClusterRefused, ask_cluster, not_warmlane
from cluster.commands.explanation_table import caches_table, heading, plans_table, scores_table

PATH = "/v1/explain"
PIPE_COLUMNS = 120
"""Where nobody says how wide the output is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("request", nargs="?", metavar="TEXT|JSON", help="a user's message, or the JSON body of a request")
    what.add_argument("--file", type=Path, metavar="FILE", help="the same from a file; - is standard input")
    parser.add_argument("--completion", action="store_true", help="the text is a plain prompt and no chat message")
    parser.add_argument("--model", help="name of the served model (default: the one that the cluster serves)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the cluster (default: %(default)s)")
    parser.add_argument("--key-file", type=Path, help="file that holds your API key, where the cluster has keys")
    parser.add_argument("--json", action="store_true", help="print the cluster's answer as it is")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 where there is no answer."""
    try:
        body = request_body(_text(args), args.completion)
        if "model" not in body or args.model is not None:
            body["model"] = args.model or _served_model(args.url, args.key_file)
        answer = ask_cluster(args.url, PATH, body, args.key_file)
        if not all("caches" in explanation for explanation in answer.get("data", [{}])):
            raise ClusterRefused(not_warmlane(args.url, PATH, 200))
    except (ClusterRefused, ValueError) as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(answer, indent=2))
        return 0
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    for explanation in answer["data"]:
        console.print(heading(explanation), highlight=False, markup=False, soft_wrap=True)
        console.print(scores_table(explanation))
        if (plans := plans_table(explanation)) is not None:
            console.print(plans)
        console.print(caches_table(explanation))
    return 0


def request_body(text: str, is_completion: bool = False) -> dict[str, Any]:
    """A JSON object is a body already; everything else is a text. Raises ValueError for an empty one."""
    if not text.strip():
        raise ValueError("there is nothing to explain: the text is empty")
    if text.lstrip().startswith("{"):
        try:
            body = json.loads(text)
        except ValueError as error:
            raise ValueError(f"the body is no JSON: {error}") from error
        return dict(body)
    return {"prompt": text} if is_completion else {"messages": [{"role": "user", "content": text}]}


def _text(args: argparse.Namespace) -> str:
    if args.file is None:
        return str(args.request)
    if str(args.file) == "-":
        return sys.stdin.read()
    try:
        text: str = args.file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {args.file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.file} is no UTF-8 text") from error
    return text


def _served_model(url: str, key_file: Path | None) -> str:
    models = ask_cluster(url, "/v1/models", None, key_file).get("data")
    if not models:
        raise ClusterRefused(not_warmlane(url, "/v1/models", 200))
    return str(models[0]["id"])

"""`warmlane model`: makes a model ready before it is needed, and tells what it costs."""

import argparse
import sys

from rich.console import Console
from rich.table import Table

from cluster.models.default_model import DEFAULT_MODEL, ModelUnavailable
from cluster.models.facts import read_model_facts
from cluster.models.store import resolve_model
from cluster.setting_sources import format_bytes, parse_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="fetch and convert a model, and print its folder")
    inspect = actions.add_parser("inspect", help="what a token, a block and a full-length request cost in memory")
    for action in (fetch, inspect):
        action.add_argument(
            "model", nargs="?", default=DEFAULT_MODEL, help="name, folder or hub id (default: %(default)s)"
        )
    inspect.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16"))
    inspect.add_argument("--block-size", type=int, default=16, help="tokens of a block (default: %(default)s)")
    inspect.add_argument("--tokens", type=int, help="length of a request (default: the model's window)")
    inspect.add_argument("--kv-memory", default="1GiB", help="memory for K/V (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Progress on standard error, the answer alone on standard output."""
    try:
        kv_memory = _kv_memory(args) if args.action == "inspect" else 0
        folder = str(resolve_model(args.model, Console(stderr=True)))
        if args.action == "fetch":
            print(folder)
        else:
            Console().print(_inspection(args, folder, kv_memory))
    except (ModelUnavailable, ValueError, OSError) as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    return 0


def _kv_memory(args: argparse.Namespace) -> int:
    """Checks what can be checked without the model. Raises ValueError."""
    if not 1 <= args.block_size <= 1024:
        raise ValueError(f"block_size must be between 1 and 1024 tokens, got {args.block_size}")
    if args.tokens is not None and args.tokens < 1:
        raise ValueError(f"tokens must be at least 1, got {args.tokens}")
    return parse_bytes("kv_memory", args.kv_memory)


def _inspection(args: argparse.Namespace, folder: str, kv_memory: int) -> Table:
    """Raises ValueError for more tokens than the window or a model that cannot be served (UnsupportedModel)."""
    window = read_model_facts(folder).max_model_len(None)
    num_tokens = window if args.tokens is None else args.tokens
    if num_tokens > window:
        raise ValueError(f"tokens must be between 1 and the model's window of {window}, got {num_tokens}")
    from replica.model.footprint import model_footprint  # imports torch: last

    cost = model_footprint(folder, args.dtype)
    table = Table(title=f"{args.model} in {args.dtype}", show_header=False)
    for name, count in (
        (f"weights ({cost.num_parameters:,} parameters)", cost.weight_bytes),
        ("K/V of one token", cost.token_bytes),
        (f"K/V of a block of {args.block_size} tokens", cost.token_bytes * args.block_size),
        (f"K/V of a request of {num_tokens:,} tokens", cost.request_bytes(num_tokens, args.block_size)),
    ):
        table.add_row(name, f"{count:,} bytes", format_bytes(count))
    fitting = cost.num_requests(kv_memory, num_tokens, args.block_size)
    table.add_row(f"such requests in {format_bytes(kv_memory)} of K/V memory", f"{fitting:,}", "")
    return table

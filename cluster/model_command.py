"""`warmlane model`: makes a model ready before it is needed."""

import argparse
import sys

from rich.console import Console

from cluster.default_model import DEFAULT_MODEL, ModelUnavailable
from cluster.model_store import resolve_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help="name, folder or hub id (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Progress on standard error, the folder alone on standard output."""
    try:
        print(resolve_model(args.model, Console(stderr=True)))
    except ModelUnavailable as error:
        print(f"warmlane: {error}", file=sys.stderr)
        return 1
    return 0

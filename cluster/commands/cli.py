"""The command `warmlane`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from cluster.machine.interrupts import take_interrupts

COMMANDS = {
    "serve": ("cluster.commands.serve", "start a cluster on this machine; Ctrl-C stops it"),
    "demo": ("cluster.commands.demo", "run one multi-turn workload with two routing policies and compare them"),
    "explain": ("cluster.commands.explain", "tell where a request would go, and what of it is cached where"),
    "policy": ("cluster.commands.policy", "show or change the routing policy of a running cluster"),
    "lab": ("cluster.commands.lab", "compare routing policies in simulation, without a cluster"),
    "key": ("cluster.commands.key", "make an API key for a tenant or an administrator"),
    "model": ("cluster.commands.model", "fetch a model, or tell what it costs in memory"),
}
"""name -> module with `add_arguments(parser)` and `run(args) -> exit code`, imported when the command is used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    take_interrupts()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="warmlane", description="LLM serving with prefix-aware routing on Ray.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        if name in arguments[:1]:
            import_module(module_name).add_arguments(subparser)
    args = parser.parse_args(arguments)
    return int(import_module(COMMANDS[args.command][0]).run(args))


if __name__ == "__main__":
    sys.exit(main())

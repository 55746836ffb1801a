"""The command `warmlane`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {
    "serve": ("cluster.serve_command", "start a cluster on this machine; Ctrl-C stops it"),
    "demo": ("cluster.demo_command", "run one multi-turn workload with two routing policies and compare them"),
    "policy": ("cluster.policy_command", "show or change the routing policy of a running cluster"),
    "model": ("cluster.model_command", "fetch and convert a model, and print its folder"),
}
"""name -> module with `add_arguments(parser)` and `run(args) -> exit code`, imported when the command is used."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="warmlane", description="LLM serving with prefix-aware routing on Ray.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module_name, summary) in COMMANDS.items():
        subparser = subparsers.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
        )
        if name in arguments[:1]:
            import_module(module_name).add_arguments(subparser)
    args = parser.parse_args(arguments)
    try:
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

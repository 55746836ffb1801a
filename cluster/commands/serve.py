"""`warmlane serve`: from settings to a running cluster on this machine, and back to nothing on Ctrl-C."""

import argparse
import sys
from dataclasses import fields
from typing import Any

from rich.console import Console

from cluster.api.tenants import read_api_keys
from cluster.config import ServeConfig
from cluster.local.embedded_redis import RedisUnavailable, check_redis
from cluster.local.machine_check import check_disk_folder, check_gpus, check_memory, check_one_request_fits
from cluster.local.startup_report import StartupReport
from cluster.local.supervisor import ClusterFailed, ClusterSupervisor
from cluster.machine.free_ports import PortTaken, check_free
from cluster.models.default_model import ModelUnavailable
from cluster.models.store import resolve_model
from cluster.text.sampling_defaults import read_sampling_defaults

REFUSALS = (ValueError, OSError, ModelUnavailable, RedisUnavailable, PortTaken, ClusterFailed)
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting of ServeConfig that may stand in a process list. Values are checked by ServeConfig."""
    parser.add_argument("--config", metavar="FILE", help="YAML file of the same settings; flags win over it")
    for item in fields(ServeConfig):
        if item.type is bool:
            parser.add_argument(
                "--" + item.name.replace("_", "-"),
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=_help(item.metadata["help"], item.default),
            )
        elif item.metadata["flag"]:
            parser.add_argument(
                "--" + item.name.replace("_", "-"),
                metavar=item.name.split("_")[-1].upper(),
                default=argparse.SUPPRESS,
                help=_help(item.metadata["help"], item.default),
            )


def _help(text: str, default: Any) -> str:
    shown = isinstance(default, str | int) and not isinstance(default, bool) and "default" not in text
    return text.replace("%", "%%") + (f" (default: {default})" if shown else "")


def run(args: argparse.Namespace) -> int:
    """Returns the exit code: 0 after Ctrl-C on a running cluster, 130 during start-up, 1 when it cannot run."""
    console = Console()
    flags = {item.name: getattr(args, item.name) for item in fields(ServeConfig) if hasattr(args, item.name)}
    try:
        config = ServeConfig.load(flags, args.config)
        _check_surroundings(config)
        model_dir = resolve_model(config.model, console)
        sampling = read_sampling_defaults(model_dir) if not config.ignore_generation_config else None
        check_disk_folder(config)
        check_memory(config, model_dir)
        check_one_request_fits(config, model_dir)
    except KeyboardInterrupt:
        return INTERRUPTED
    except REFUSALS as error:
        return _refuse(error)
    report = StartupReport(config, console)
    if sampling is not None and str(sampling):
        report.notice(f"Sampling where a request names none: {sampling} (the model's generation_config.json)")
    return _serve(ClusterSupervisor(config, model_dir), report)


def _check_surroundings(config: ServeConfig) -> None:
    """What takes no time to check, before a model is fetched or read."""
    check_free(config.host, config.port)
    check_gpus(config)
    if config.api_keys_file is not None:
        read_api_keys(config.api_keys_file)
    if config.redis_url is not None:
        check_redis(config.redis_url)


def _serve(cluster: ClusterSupervisor, report: StartupReport) -> int:
    keep_folder, code = False, INTERRUPTED
    try:
        report.follow(cluster.start(), lambda: cluster.log)
        code = 0
        cluster.wait(report.notice)
    except KeyboardInterrupt:
        pass
    except REFUSALS as error:
        keep_folder, code = cluster.log is not None, _refuse(error)
    finally:
        was_started = cluster.folder is not None
        if was_started:
            report.stopping()
        cluster.stop()
        if not keep_folder:
            cluster.remove_folder()
    if was_started:
        report.stopped(cluster.log if keep_folder else None)
    return code


def _refuse(error: BaseException) -> int:
    print(f"warmlane: {error}", file=sys.stderr)
    return 1

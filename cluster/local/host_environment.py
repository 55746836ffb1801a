"""What the process that holds Ray, and with it all that Ray starts, gets of the environment it was started in.

It runs in an empty folder: Ray puts the folder that it was started in before everything else on the path of its
workers, where a user's cluster.py, cache.py or redis.py would be taken for ours or for a library.
"""

import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from cluster.config import ServeConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEEDED_FILES = 65536
_REDIS_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")


def host_environment(variables: Mapping[str, str], host: str) -> dict[str, str]:
    """The same, with nothing that depends on the working folder, and no proxy before this machine's own ports.

    host: where the API listens.
    """
    environment = dict(variables)
    for name in ("PYTHONPATH", "XDG_CACHE_HOME"):
        if given := environment.get(name):
            environment[name] = os.pathsep.join(os.path.abspath(path) for path in given.split(os.pathsep) if path)
    direct = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    names = [name for name in direct.split(",") if name.strip()]
    names += [name for name in (*LOOPBACK, host) if name not in names]
    # gRPC, Python's urllib and curl read one spelling each.
    environment["no_proxy"] = environment["NO_PROXY"] = ",".join(names)
    return environment


def independent_of_folder(config: ServeConfig) -> ServeConfig:
    """The same settings for a process in another working folder."""
    keys = config.api_keys_file
    return replace(
        config,
        served_model_name=config.model_name,
        api_keys_file=keys and os.path.abspath(keys),
        redis_url=config.redis_url and _with_absolute_files(config.redis_url),
    )


def raise_open_files(num_needed: int = NEEDED_FILES) -> int:
    """Lets this process and those that it starts hold as many files and connections as it may; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= num_needed:
        return num_needed if soft == unlimited else soft
    best = num_needed if hard == unlimited else max(num_needed, hard)
    for limits in ((best if hard == unlimited else max(num_needed, soft), best), (min(hard, num_needed), hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        except (ValueError, OSError):  # only the superuser may go beyond the hard limit, and not in every container
            continue
        return limits[0]
    return soft


def _with_absolute_files(url: str) -> str:
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if not any(name in _REDIS_FILES for name, _ in query):
        return url
    values = [(name, os.path.abspath(value) if name in _REDIS_FILES and value else value) for name, value in query]
    return urlunsplit(parts._replace(query=urlencode(values)))

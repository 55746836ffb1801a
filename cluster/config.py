"""Everything `warmlane serve` can be told: one dataclass, the same names in flags, YAML and environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cache.eviction import EVICTIONS
from cluster.api.limits import ApiLimits
from cluster.models.default_model import DEFAULT_MODEL
from cluster.setting_sources import SettingSource, expanded, parse_bytes
from replica.config import EngineConfig
from router.policies.registry import DEFAULT_POLICY, POLICIES, make_policy

_SECRET = re.compile(r"(?:[0-9a-fA-F]{2}){16,64}")
_REPLICA_API_KEY = re.compile(r"[!-~]{16,256}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@,*A-Z]+")
"""As a browser sends it: a scheme and a host in small letters, perhaps a port, and nothing behind it."""
_SIZES = ("kv_memory", "host_kv_memory", "disk_kv_size", "disk_kv_write_rate", "pull_rate", "max_body_bytes")
_ENGINE = {item.name: item.default for item in fields(EngineConfig)}

TRANSPORTS = ("auto", "side_channel", "handle")
"""How answers come from the replicas to an ingress. auto: over side channels, and by Serve streams while there is none.
side_channel: nothing else. handle: streams."""


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    shown: bool = True,
    logged: bool = True,
) -> Any:
    """A field of ServeConfig. low, high: inclusive bounds of a number. help: shown by `warmlane serve --help`.

    shown: False for what must not stand in logs and process lists; it has no flag, and no message proposes it.
    logged: False for what has a flag and must not stand in logs.
    """
    metadata = {"help": help, "low": low, "high": high, "flag": shown}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata, repr=shown and logged)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Settings of one cluster, checked. ValueError names the field, the value and the bound."""

    model: str = setting(DEFAULT_MODEL, "local folder, hub id (owner/name), or the default model's name")
    served_model_name: str | None = setting(None, "the name clients use; default: the last part of --model")
    replicas: int = setting(2, "engine replicas", low=1, high=1024)
    num_ingress: int = setting(1, "HTTP ingress replicas", low=1, high=64)
    gpus_per_replica: int = setting(0, "GPUs of one replica: 0 runs on CPUs, more than 1 is not supported", low=0)
    policy: str = setting(DEFAULT_POLICY, f"routing policy: {', '.join(POLICIES)}")
    policy_weights: dict[str, float] = setting({}, "weights of the policy, as name=value,name=value")
    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port of the HTTP API", low=1, high=65535)
    dtype: str = setting("auto", "auto, float32, float16 or bfloat16; auto is float32 on CPUs, else the checkpoint's")
    max_model_len: int | None = setting(None, "tokens of prompt and answer together; default: the model's", low=1)
    block_size: int = setting(_ENGINE["block_size"], "tokens of a KV block", low=1, high=1024)
    page_size: int | None = setting(
        None, "tokens of a physical page, a multiple of --block-size; default: what attention takes", low=1
    )
    num_blocks: int | None = setting(None, "KV blocks of one replica; wins over --kv-memory", low=2)
    kv_memory: int | None = setting(None, "KV memory of one replica, e.g. 2GiB; default: by available memory", low=1)
    eviction: str = setting(_ENGINE["eviction"], f"which cached pages go first: {', '.join(EVICTIONS)}")
    host_kv_memory: int = setting(
        0, "memory of one replica for KV pages that its pool evicts, e.g. 4GiB; 0 keeps none", low=0
    )
    pull: bool = setting(
        False, "replicas take pages from each other where that is cheaper than computing (a port each, authenticated)"
    )
    pull_rate: int | None = setting(
        None, "bytes a second that one replica may give to others, e.g. 1GB; default: no bound", low=1
    )
    disk_kv_folder: str | None = setting(
        None, "folder for KV pages that are used again; survives restarts; default: none"
    )
    disk_kv_size: int = setting(_ENGINE["disk_kv_size"], "bytes that one replica may take there, e.g. 50GiB", low=1)
    disk_kv_write_rate: int = setting(
        _ENGINE["disk_kv_write_rate"], "bytes a second that one replica may write there, e.g. 200MB", low=1
    )
    max_num_seqs: int = setting(_ENGINE["max_num_seqs"], "requests that one replica runs at once", low=1, high=65536)
    max_num_batched_tokens: int = setting(_ENGINE["max_num_batched_tokens"], "tokens of one engine step", low=1)
    deterministic: bool = setting(
        False, "logits the same to the bit whatever the batch, the chunks and the hits (float32 on CPUs)"
    )
    ignore_generation_config: bool = setting(
        False, "leave the model's own sampling defaults (generation_config.json) out; they hold for what requests omit"
    )
    threads_per_replica: int | None = setting(
        None, "torch threads; default: a node's cores (or CPU quota), shared out among its replicas", low=1, high=1024
    )
    max_waiting_requests: int = setting(
        _ENGINE["max_waiting_requests"], "requests that may wait in one replica; beyond that 429", low=1
    )
    max_waiting_tokens: int = setting(
        _ENGINE["max_waiting_tokens"], "prompt tokens that may wait in one replica; beyond that 429", low=1
    )
    transport: str = setting("auto", f"how answers come from the replicas: {', '.join(TRANSPORTS)}")
    request_timeout_seconds: int = setting(600, "a request's longest time, waiting included", low=1, high=86400)
    drain_seconds: int = setting(
        30, "how long answers may go on when their replica, their ingress or the cluster is stopped", low=0, high=3600
    )
    max_body_bytes: int = setting(8 * 2**20, "largest body of a request, e.g. 8MiB", low=1024, high=2**31)
    max_choices: int = setting(512, "most answers of one request (prompts times n)", low=1, high=65536)
    api_keys_file: str | None = setting(None, "YAML file of key hashes and tenants (warmlane key); default: no keys")
    cors_origins: str | None = setting(
        None, "origins whose pages may use the API in a browser, as https://a.example,http://localhost:3000; * for all"
    )
    replica_api_key: str | None = setting(
        None,
        "opens each replica's own API on a loopback port to holders of this key, 16 to 256 characters (a flag shows in "
        "the process list, a variable does not); default: no ports",
        logged=False,
    )
    index_blocks: int = setting(
        4_000_000, "block keys that one router remembers; when full the least recently used go", low=1, high=10**9
    )
    redis_url: str | None = setting(None, "Redis to share the prefix index through; default: one is started")
    secret: str | None = setting(
        None, "key of all block keys, 32 to 128 hex digits; default: drawn at start", shown=False
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            low, high = item.metadata["low"], item.metadata["high"]
            if value is None or low is None:
                continue
            if value < low or (high is not None and value > high):
                bound = f"between {low} and {high}" if high is not None else f"at least {low}"
                raise ValueError(f"{item.name} must be {bound}, got {value}")
        if self.gpus_per_replica > 1:
            raise ValueError(f"gpus_per_replica must be 0 or 1 for now, got {self.gpus_per_replica}")
        for name in ("model", "policy", "host", "served_model_name", "redis_url", "api_keys_file", "disk_kv_folder"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} must not be empty")
        if self.secret is not None and not _SECRET.fullmatch(self.secret):
            raise ValueError(f"secret must be 32 to 128 hex digits, got {len(self.secret)} characters")
        if not self.model_name:
            raise ValueError(f"served_model_name must be given where model is {self.model!r}, which has no name")
        self._check_replica_api_key()
        self._check_origins()
        if self.deterministic and (self.gpus_per_replica or self.dtype not in ("auto", "float32")):
            raise ValueError(
                f"deterministic needs float32 on CPUs, got dtype {self.dtype} and "
                f"gpus_per_replica {self.gpus_per_replica}"
            )
        if self.transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, got {self.transport!r}")
        make_policy(self.policy, self.policy_weights)  # an unknown one is refused before anything starts
        self.engine(self.model)  # the engine's own bounds (dtype, budget against requests) hold from the start

    def _check_replica_api_key(self) -> None:
        if self.replica_api_key is None:
            return
        if not _REPLICA_API_KEY.fullmatch(self.replica_api_key):
            length = len(self.replica_api_key)
            raise ValueError(
                "replica_api_key must be 16 to 256 printable ASCII characters without blanks, got "
                f"{length} character{'' if length == 1 else 's'}"
            )
        if self.api_keys_file is not None:  # who holds that one key could name any tenant's space as cache_salt (51)
            raise ValueError("replica_api_key cannot be used together with api_keys_file: a replica knows no tenants")

    def _check_origins(self) -> None:
        for origin in self.origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "cors_origins must be origins such as https://chat.example or http://localhost:3000, separated by "
                    f"commas, or *, got {origin!r}"
                )

    @property
    def origins(self) -> tuple[str, ...]:
        """`cors_origins` one by one."""
        return tuple(part.strip() for part in self.cors_origins.split(",")) if self.cors_origins is not None else ()

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        if self.served_model_name:
            return self.served_model_name
        path = Path(self.model)
        # "." and the like name nothing by themselves; a link keeps the name that it was given by.
        return path.name if path.name not in ("", "..", "~") else path.expanduser().resolve().name

    @property
    def listens_on_loopback(self) -> bool:
        """Whether only this machine can reach the cluster."""
        return self.host == "localhost" or self.host.startswith("127.") or self.host == "::1"

    @property
    def local_url(self) -> str:
        """Where this machine finds the API."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def api_limits(self) -> ApiLimits:
        return ApiLimits(
            max_body_bytes=self.max_body_bytes,
            max_choices=self.max_choices,
            request_timeout_seconds=self.request_timeout_seconds,
        )

    def engine(self, model_dir: str) -> EngineConfig:
        """The engine's part."""
        return EngineConfig(
            model=model_dir,
            dtype=self.dtype,
            device="cuda" if self.gpus_per_replica else "cpu",
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            page_size=self.page_size,
            num_blocks=self.num_blocks,
            kv_memory_bytes=self.kv_memory,
            eviction=self.eviction,
            host_kv_memory=self.host_kv_memory,
            pull=self.pull,
            pull_rate=self.pull_rate,
            disk_kv_folder=None if self.disk_kv_folder is None else str(expanded(self.disk_kv_folder).absolute()),
            disk_kv_size=self.disk_kv_size,
            disk_kv_write_rate=self.disk_kv_write_rate,
            # Replicas on CPUs divide this by those of their node, which measure at about the same time (`node_share`).
            memory_fraction=0.85 if self.gpus_per_replica else 0.5,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_waiting_requests=self.max_waiting_requests,
            max_waiting_tokens=self.max_waiting_tokens,
            deterministic=self.deterministic,
            threads=self.threads_per_replica,
        )

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "ServeConfig":
        """Flags win over the environment, the environment over the file, the file over the defaults.

        flags: only those that were given. file: YAML mapping, default `WARMLANE_CONFIG`. environment: default
        `os.environ`; every variable that starts with WARMLANE_ must name a field.
        Raises ValueError for unknown names, values out of bounds and a file that cannot be read.
        """
        variables = SettingSource.environment(os.environ if environment is None else environment)
        file = file or variables.values.pop("config", None)
        settings: dict[str, Any] = {}
        if file:
            settings |= _checked_values(SettingSource.file(Path(file)))
        settings |= _checked_values(variables)
        settings |= _checked_values(SettingSource.command_line(flags or {}))
        return cls(**settings)


def _checked_values(source: SettingSource) -> dict[str, Any]:
    known = {item.name: item for item in fields(ServeConfig)}
    source.check_names(known, [name for name, item in known.items() if item.metadata["flag"]])
    return {name: _typed(name, known[name].type, value) for name, value in source.values.items()}


def _typed(name: str, kind: Any, value: Any) -> Any:
    """Text from flags and variables becomes the field's type; YAML's values must have it already."""
    if name == "policy_weights":
        return _weights(value)
    optional = type(None) in getattr(kind, "__args__", ())
    if value is None:
        if optional:
            return None
        raise ValueError(f"{name} must not be null")
    if name in _SIZES:
        return parse_bytes(name, value)
    if kind is bool:
        return _yes_or_no(name, value)
    wants_int = kind is int or int in getattr(kind, "__args__", ())
    if not wants_int:
        if isinstance(value, list | dict):
            raise ValueError(f"{name} must be one text, got {value!r}")
        return str(value)
    try:
        if isinstance(value, bool | float):
            raise ValueError
        return int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None


def _yes_or_no(name: str, value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError(f"{name} must be true or false, got {value!r}") from None


def _weights(value: Any) -> dict[str, float]:
    try:
        pairs = value.items() if isinstance(value, Mapping) else [p.split("=") for p in str(value).split(",") if p]
        return {str(key).strip(): float(weight) for key, weight in pairs}
    except (TypeError, ValueError):
        raise ValueError(f"policy_weights must be name=value,name=value, got {value!r}") from None

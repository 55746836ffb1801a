"""Who may call, and how much: API keys, each with a tenant."""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.setting_sources import read_yaml

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")


def key_hash(key: str) -> str:
    """What the file of keys holds: SHA-256 in hex. Keys are random and long (`warmlane key`), so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """name: also the name space of this tenant's cached pages. key_hashes: several while keys are being replaced.

    requests_per_minute, max_concurrent_requests: None is no limit; both are shared out evenly among the ingresses.
    """

    name: str
    key_hashes: tuple[str, ...] = field(repr=False)
    requests_per_minute: int | None = None
    max_concurrent_requests: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tenant's name must have 1 to 64 letters, digits, '_', '.' or '-', got {self.name!r}")
        _check_hashes(f"key_sha256 of tenant {self.name}", self.key_hashes)
        for name in ("requests_per_minute", "max_concurrent_requests"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 1 <= value <= 1_000_000):
                raise ValueError(f"{name} of tenant {self.name} must be between 1 and 1000000, got {value!r}")

    def cache_salt(self, given: str | None) -> str:
        """The salt of this tenant's pages. Whatever a caller gives, it begins with the tenant's own name and length, so
        that no caller can name another tenant's space (51)."""
        return f"tenant:{len(self.name)}:{self.name}:{given or ''}"


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """All tenants of a cluster, and the keys of its administrators. Holds hashes alone, never a key."""

    tenants: tuple[Tenant, ...]
    admin_hashes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        _check_hashes("admin_key_sha256", self.admin_hashes)
        names = [tenant.name for tenant in self.tenants]
        hashes = [value for tenant in self.tenants for value in tenant.key_hashes] + list(self.admin_hashes)
        if len(set(names)) < len(names) or len(set(hashes)) < len(hashes):
            raise ValueError("tenants must have names and keys of their own, got one of them twice")

    def find(self, key: str) -> tuple[Tenant | None, bool]:
        """The tenant of a key, and whether it is an administrator's. Takes as long whichever key it is, if any."""
        given = key_hash(key)
        found: Tenant | None = None
        for tenant in self.tenants:
            for known in tenant.key_hashes:
                if hmac.compare_digest(given, known):
                    found = tenant
        is_admin = False
        for known in self.admin_hashes:
            is_admin |= hmac.compare_digest(given, known)
        return found, is_admin


def read_api_keys(path: str | Path) -> ApiKeys:
    """Reads a YAML file: `admin_key_sha256` and `tenants`, see `warmlane key`.

    Raises ValueError that names the file and the field at fault.
    """
    content = _mapping(f"{path}", read_yaml(path), {"admin_key_sha256", "tenants"})
    entries = content.get("tenants") or []
    if not isinstance(entries, list):
        raise ValueError(f"tenants in {path} must be a list, got {type(entries).__name__}")
    try:
        return ApiKeys(tuple(map(_tenant, entries)), _hashes(content.get("admin_key_sha256")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _tenant(entry: Any) -> Tenant:
    known = {"name", "key_sha256", "requests_per_minute", "max_concurrent_requests"}
    entry = _mapping("a tenant", entry, known)
    return Tenant(
        name=str(entry.get("name", "")),
        key_hashes=_hashes(entry.get("key_sha256")),
        requests_per_minute=entry.get("requests_per_minute"),
        max_concurrent_requests=entry.get("max_concurrent_requests"),
    )


def _mapping(what: str, value: Any, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a mapping, got {type(value).__name__}")
    unknown = sorted(map(str, set(value) - known))
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r} in {what}; known are {', '.join(sorted(known))}")
    return value


def _hashes(value: Any) -> tuple[str, ...]:
    values = [] if value is None else value if isinstance(value, list) else [value]
    return tuple(str(item).lower() for item in values)


def _check_hashes(what: str, hashes: Sequence[str]) -> None:
    if any(not _HASH.fullmatch(value) for value in hashes):
        raise ValueError(f"{what} must be 64 hex digits, the SHA-256 of a key")

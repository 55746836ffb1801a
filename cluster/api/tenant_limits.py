"""How much each tenant asks for at a time, in one ingress."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.api.errors import ApiError
from cluster.api.tenants import Tenant


@dataclass(slots=True)
class _Usage:
    """tokens: requests that may still come at once, filled up over time as of `filled_at`."""

    tokens: float
    filled_at: float
    num_running: int = 0


class TenantLimits:
    """A bucket of a minute's requests per tenant, and a count of those that run."""

    def __init__(self, num_ingresses: int = 1, clock: Callable[[], float] = time.monotonic):
        """num_ingresses: limits are shared out evenly, rounded up. clock: seconds, monotonic."""
        self._num_ingresses = num_ingresses
        self._clock = clock
        self._usage: dict[str, _Usage] = {}

    @contextmanager
    def admitted(self, tenant: Tenant) -> Iterator[Callable[[], None]]:
        """Around one request; calling what it gives ends the request's place early.

        Raises ApiError 429 where the tenant has used up what it may.
        """
        usage = self._take(tenant)
        usage.num_running += 1
        is_running = True

        def leave() -> None:
            nonlocal is_running
            usage.num_running -= is_running
            is_running = False

        try:
            yield leave
        finally:
            leave()

    def _take(self, tenant: Tenant) -> _Usage:
        per_minute = self._share(tenant.requests_per_minute)
        now = self._clock()
        usage = self._usage.setdefault(tenant.name, _Usage(per_minute or 0, now))
        most = self._share(tenant.max_concurrent_requests)
        if most is not None and usage.num_running >= most:
            raise _too_many(f"{usage.num_running} requests of this key run already", "concurrency_limit_exceeded", 1.0)
        if per_minute is not None:
            usage.tokens = min(per_minute, usage.tokens + (now - usage.filled_at) * per_minute / 60)
            usage.filled_at = now
            if usage.tokens < 1:
                seconds = (1 - usage.tokens) * 60 / per_minute
                raise _too_many(
                    f"this key may send {tenant.requests_per_minute} requests a minute", "rate_limit_exceeded", seconds
                )
            usage.tokens -= 1
        return usage

    def _share(self, limit: int | None) -> int | None:
        return None if limit is None else math.ceil(limit / self._num_ingresses)


def _too_many(reason: str, code: str, retry_after_seconds: float) -> ApiError:
    message = f"Too many requests: {reason}; try again later."
    return ApiError(429, message, type="rate_limit_error", code=code, retry_after_seconds=retry_after_seconds)

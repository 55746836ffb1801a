"""The policy in force, and how it changes while requests are routed."""

import copy
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b

from cache.wire.records import PolicySetting
from router.policies.base import Policy
from router.policies.registry import make_policy


class PolicySwitch:
    """Holds one policy and where it came from. A setting that is refused changes nothing.

    A router starts with what is configured (revision 0). `set` is what an operator wants now, `adopt` what another
    router was told: the highest revision wins everywhere. Revisions are wall-clock nanoseconds, but never below the one
    in force. A setting overrides one configuration only: when another one is deployed, old settings do not haunt it.

    Any thread may change the policy; the one that routes reads it once per request. New weights for the policy in force
    keep what it remembers.
    """

    def __init__(self, name: str, weights: Mapping[str, float], clock_ns: Callable[[], int] = time.time_ns):
        """Raises ValueError for an unknown policy or weight, as all methods do."""
        self._lock = threading.Lock()
        self._clock_ns = clock_ns
        self._policy = make_policy(name, weights)
        self._setting = self._configured(name, weights)

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def setting(self) -> PolicySetting:
        return self._setting

    def set(self, name: str, weights: Mapping[str, float]) -> PolicySetting:
        fresh = make_policy(name, weights)
        with self._lock:
            return self._take(fresh, _setting(self._next(), name, weights, self._setting.configured))

    def configure(self, name: str, weights: Mapping[str, float]) -> None:
        """The configuration at the start. What was adopted already stays if it overrides this very configuration."""
        fresh, setting = make_policy(name, weights), self._configured(name, weights)
        with self._lock:
            if not self._setting.revision or self._setting.configured != setting.configured:
                self._take(fresh, setting)

    def reconfigure(self, name: str, weights: Mapping[str, float]) -> None:
        """Another configuration while the cluster runs: it counts from now on, whatever was set before."""
        fresh, configured = make_policy(name, weights), self._configured(name, weights).configured
        with self._lock:
            self._take(fresh, _setting(self._next(), name, weights, configured))

    def adopt(self, setting: PolicySetting) -> bool:
        """Whether it took the place of the one in force."""
        fresh = make_policy(setting.name, dict(setting.weights))
        with self._lock:
            counts = setting.revision > 0 and setting.configured == self._setting.configured
            newer = counts and setting > self._setting
            if newer:
                self._take(fresh, setting)
            return newer

    def _next(self) -> int:
        return max(self._clock_ns(), self._setting.revision + 1)

    def _take(self, fresh: Policy, setting: PolicySetting) -> PolicySetting:
        if type(fresh) is type(self._policy):
            weights = fresh.weights
            fresh = copy.copy(self._policy)  # shares what it remembers; a request under way keeps its weights
            fresh.weights = weights
        self._policy, self._setting = fresh, setting
        return setting

    @staticmethod
    def _configured(name: str, weights: Mapping[str, float]) -> PolicySetting:
        setting = _setting(0, name, weights, "")
        digest = blake2b(repr((setting.name, setting.weights)).encode(), digest_size=8).hexdigest()
        return _setting(0, name, weights, digest)


def _setting(revision: int, name: str, weights: Mapping[str, float], configured: str) -> PolicySetting:
    values = tuple(sorted((key, float(value)) for key, value in weights.items()))
    return PolicySetting(revision, name, values, configured)

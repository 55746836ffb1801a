"""The policy in force, and how it changes while requests are routed."""

import copy
import threading
import time
from collections.abc import Callable, Mapping

from cache.wire import PolicySetting
from router.policies.base import Policy
from router.policies.registry import make_policy


class PolicySwitch:
    """Holds one policy and where it came from. A setting that is refused changes nothing.

    `set` is what an operator wants now, `configure` what the configuration says, `adopt` what another router was told:
    the highest revision wins everywhere. Revisions are wall-clock nanoseconds, but never below the one in force.

    Any thread may change the policy; the one that routes reads it once per request. New weights for the policy in force
    keep what it remembers.
    """

    def __init__(self, name: str, weights: Mapping[str, float], clock_ns: Callable[[], int] = time.time_ns):
        """Raises ValueError for an unknown policy or weight, as all methods do."""
        self._lock = threading.Lock()
        self._clock_ns = clock_ns
        self._policy = make_policy(name, weights)
        self._setting = _setting(0, name, weights)

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def setting(self) -> PolicySetting:
        return self._setting

    def set(self, name: str, weights: Mapping[str, float]) -> PolicySetting:
        fresh = make_policy(name, weights)
        with self._lock:
            revision = max(self._clock_ns(), self._setting.revision + 1)
            return self._take(fresh, _setting(revision, name, weights))

    def configure(self, name: str, weights: Mapping[str, float]) -> None:
        """Counts only as long as nobody has set anything."""
        fresh = make_policy(name, weights)
        with self._lock:
            if not self._setting.revision:
                self._take(fresh, _setting(0, name, weights))

    def adopt(self, setting: PolicySetting) -> bool:
        """Whether it was newer than the one in force."""
        fresh = make_policy(setting.name, dict(setting.weights))
        with self._lock:
            newer = setting.revision > 0 and setting > self._setting
            if newer:
                self._take(fresh, setting)
            return newer

    def _take(self, fresh: Policy, setting: PolicySetting) -> PolicySetting:
        if type(fresh) is type(self._policy):
            weights = fresh.weights
            fresh = copy.copy(self._policy)  # shares what it remembers; a request under way keeps its weights
            fresh.weights = weights
        self._policy, self._setting = fresh, setting
        return setting


def _setting(revision: int, name: str, weights: Mapping[str, float]) -> PolicySetting:
    return PolicySetting(revision, name, tuple(sorted((key, float(value)) for key, value in weights.items())))

"""Keeps this router's policy and the one that lies in Redis the same."""

import logging

from redis import RedisError

from cache.wire import records as wire
from router.following.redis_connection import RedisConnection
from router.policy_switch import PolicySwitch

logger = logging.getLogger(__name__)


class PolicyAgreement:
    """The newest setting wins. It outlives the ingress that was told, and a flush: every router puts it back."""

    def __init__(self, policy: PolicySwitch, connection: RedisConnection):
        self._policy, self._connection = policy, connection
        self._refused_revision = -1
        self._failure = ""

    def agree(self, found: wire.PolicySetting | None) -> None:
        """found: what lies in Redis. Raises as the connection, and nothing else: a policy on which routers cannot agree
        must not cost them the rest of what Redis tells."""
        try:
            self._agree(found)
        except (RedisError, OSError):
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self._failure:
                logger.error("the routers cannot agree on a policy, this one keeps its own: %s", failure)
            self._failure = failure
        else:
            self._failure = ""

    def _agree(self, found: wire.PolicySetting | None) -> None:
        own = self._policy.setting
        if found is not None and found > own:
            if found.revision != self._refused_revision:
                self._adopt(found)
        elif own.revision and found != own:
            self._connection.store_policy(wire.encode_policy(own))

    def _adopt(self, setting: wire.PolicySetting) -> None:
        try:
            if self._policy.adopt(setting):
                logger.info("the policy is now %s", setting.name)
        except ValueError as error:  # set through a router that knows more policies
            self._refused_revision = setting.revision
            logger.error("this router keeps its policy, it cannot adopt the one that was set: %s", error)

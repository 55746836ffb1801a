"""The routing policy of the whole cluster, as one of its ingresses shows and changes it, and `/admin/policy`."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cache.wire.records import PolicySetting
from cluster.api.errors import bad_request
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.serving.siblings import Broadcast
from router.prefix_router import PrefixRouter

logger = logging.getLogger(__name__)

BROADCAST_SECONDS = 5.0


class PolicyControl:
    """Sets the policy here and tells the other ingresses at once; those that start later, or could not be reached,
    learn it from Redis. Whoever was told last wins in all of them (see `router.policy_switch`).
    """

    def __init__(self, router: PrefixRouter, process: str, broadcast: Broadcast):
        self._router, self._process, self._broadcast = router, process, broadcast
        self._user_config: Mapping[str, Any] | None = None
        self._refused: str | None = None

    def local(self) -> dict[str, Any]:
        """The policy of this ingress. refused_user_config: why the last user_config was not taken, else None."""
        status = self._router.status()
        return {
            "process": self._process,
            "policy": status["policy"],
            "weights": status["weights"],
            "revision": self._router.policy_setting.revision,
            "refused_user_config": self._refused,
        }

    def adopt(self, setting: PolicySetting) -> dict[str, Any]:
        """What another ingress was told. Raises ValueError where this one does not know that policy."""
        self._router.adopt_policy(setting)
        return self.local()

    async def set(self, name: str, weights: Mapping[str, float]) -> dict[str, Any]:
        """Raises ValueError for an unknown policy or weight; then nothing has changed anywhere."""
        setting = self._router.set_policy(name, weights)
        logger.info("the policy was set to %s %s", name, dict(weights))
        return self._summary(await self._ask("adopt_policy", setting))

    async def show(self) -> dict[str, Any]:
        return self._summary(await self._ask("local_policy"))

    def configure(self, user_config: Mapping[str, Any] | None) -> None:
        """Serve's `user_config`: {"policy": name, "policy_weights": {name: value}}.

        At the start it is what counts until somebody sets another policy; a later change of it sets the policy. It
        never raises: Serve would take a running ingress down for a misspelt weight. What is refused changes nothing,
        is logged as an error and shown by `local`.
        """
        if user_config == self._user_config:
            return
        first, self._user_config = self._user_config is None, dict(user_config or {})
        try:
            name, weights = read_policy(self._user_config, "policy_weights")
            if first:
                self._router.configure_policy(name, weights)
            else:
                self._router.reconfigure_policy(name, weights)
            self._refused = None
        except ValueError as error:
            self._refused = str(error)
            logger.error("user_config was refused, the policy stays %s: %s", self._router.policy, error)

    async def _ask(self, method: str, *arguments: Any) -> list[Any]:
        try:
            async with asyncio.timeout(BROADCAST_SECONDS + 1.0):
                return await self._broadcast(method, arguments, BROADCAST_SECONDS)
        except Exception as error:  # the policy is set here all the same, and the others learn it from Redis
            logger.warning("the other ingresses could not be asked: %r", error)
            return [error]

    def _summary(self, answers: list[Any]) -> dict[str, Any]:
        """agreed: whether all ingresses answered and have the same policy with the same weights."""
        here = self.local()
        known = {answer["process"]: answer for answer in answers if isinstance(answer, dict)} | {self._process: here}
        errors = [repr(answer)[:300] for answer in answers if not isinstance(answer, dict)]
        policies = [(answer["policy"], answer["weights"]) for answer in known.values()]
        agreed = not errors and all(policy == policies[0] for policy in policies)
        return {
            "policy": here["policy"],
            "weights": here["weights"],
            "agreed": agreed,
            "ingresses": [known[process] for process in sorted(known)],
            "errors": errors,
        }


def read_policy(fields: Mapping[str, Any], weights_field: str) -> tuple[str, dict[str, float]]:
    """Raises ValueError that names the field which is missing, unknown or of the wrong type."""
    unknown = sorted(map(str, set(fields) - {"policy", weights_field}))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; known are policy and {weights_field}")
    name, weights = fields.get("policy"), fields.get(weights_field) or {}
    if not isinstance(name, str) or not name:
        raise ValueError(f"policy must be the name of a policy, got {name!r}")
    if not isinstance(weights, Mapping):
        raise ValueError(f"{weights_field} must map names to numbers, got {weights!r}")
    for key, value in weights.items():
        if not isinstance(key, str) or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{weights_field} must map names to numbers, got {key!r}: {value!r}")
    return name, dict(weights)  # which of them the policy takes, and how large they may be, it says itself


class PolicyApi:
    def __init__(self, control: PolicyControl, limits: ApiLimits):
        self._control, self._limits = control, limits

    def handlers(self) -> Mapping[tuple[str, str], Handler]:
        return {("GET", "/admin/policy"): self.show, ("POST", "/admin/policy"): self.set}

    async def show(self, request: Request) -> Response:
        """The policy and its weights, and whether all ingresses have the same."""
        return JSONResponse(await self._control.show())

    async def set(self, request: Request) -> Response:
        """{"policy": name, "weights": {name: value}}; weights that are not named get their defaults."""
        fields = await read_json_object(request, self._limits.max_body_bytes)
        try:
            name, weights = read_policy(fields, "weights")
            return JSONResponse(await self._control.set(name, weights))
        except ValueError as error:
            raise bad_request(str(error), "policy") from error

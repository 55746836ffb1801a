"""`/admin/policy`: what the routers do, and how to change it while they do it."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cluster.api.errors import bad_request
from cluster.api.http_app import Handler
from cluster.api.limits import ApiLimits
from cluster.api.request_body import read_json_object
from cluster.serving.policy_control import PolicyControl, read_policy


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

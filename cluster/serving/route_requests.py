"""What the router is told of a request for an engine; `router` and `replica` do not know each other."""

from replica.messages import GenerateRequest
from router.decision import RouteRequest


def route_request(request: GenerateRequest) -> RouteRequest:
    return RouteRequest(
        request_id=request.request_id,
        token_ids=request.token_ids,
        extra_keys=request.extra_keys,
        session_id=request.session_id,
        max_new_tokens=request.sampling.max_tokens or 0,
    )

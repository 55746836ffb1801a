"""What HAProxy says where it answers itself: as the API's own errors, and not as a page of HTML (33b)."""

from cluster.api.errors import SERVER_ERROR, ApiError
from cluster.api.failures import RETRY_AFTER_SECONDS

_REFUSALS = (
    ApiError(400, "X-Request-Id must have printable ASCII characters only.", param="X-Request-Id"),
    ApiError(404, "This path is not for clients.", code="not_found"),
    ApiError(405, "Method Not Allowed"),
    ApiError(408, "The request did not arrive in time.", type="timeout_error", code="request_incomplete"),
    ApiError(413, "The request is too large.", code="request_too_large"),
    ApiError(500, "The server failed while it handled this request.", type=SERVER_ERROR, code="internal_error"),
    ApiError(501, "The server does not know how to do this.", type=SERVER_ERROR, code="not_implemented"),
    ApiError(502, "The ingress ended before it answered.", type=SERVER_ERROR, code="ingress_lost"),
    ApiError(
        503, "No ingress takes requests now; try again later.", type=SERVER_ERROR, code="no_ingress_available",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    ),
    ApiError(504, "The ingress did not answer in time.", type=SERVER_ERROR, code="ingress_timeout"),
)  # fmt: skip


def error_rules() -> str:
    """Lines for HAProxy's `defaults`, one for each status that it can answer with by itself.

    That of 400 is for what the launcher's rules refuse. For what is no HTTP, or for headers beyond its buffer (57),
    HAProxy has an answer built in that no configuration changes (2.8).
    """
    return "".join(f"    {_rule(refusal)}\n" for refusal in _REFUSALS)


def _rule(refusal: ApiError) -> str:
    """The body stands between single quotes, where HAProxy reads everything as it is but such a quote."""
    body, headers = refusal.body().decode().replace("'", r"'\''"), refusal.response().headers
    rule = f"http-error status {refusal.status} content-type application/json string '{body}'"
    return rule + (f" hdr Retry-After {headers['retry-after']}" if "retry-after" in headers else "")

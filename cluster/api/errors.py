"""Errors as the official schema writes them: `{"error": {message, type, param, code}}`."""

import json
import math
import re

from pydantic import ValidationError
from starlette.responses import Response

_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")
INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"


def one_line(json_text: str) -> str:
    """Escapes what JSON lets stand and many readers of lines (Python's, httpx's) split at: U+0085, U+2028, U+2029.

    Outside of strings JSON has none of them, so nothing else changes.
    """
    if json_text.isascii():
        return json_text
    return _LINE_BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)


class ApiError(Exception):
    """What a client is told instead of an answer.

    status: HTTP status. param: the field at fault. code: for programs. retry_after_seconds: sent as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        retry_after_seconds: float | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.type, self.param, self.code = status, message, type, param, code
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        # A message may quote what a client sent, and that may hold half a character.
        return json.dumps({"error": error}, ensure_ascii=False).encode(errors="replace")

    def response(self, headers: dict[str, str] | None = None) -> Response:
        headers = dict(headers or {})
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_seconds)))
        return Response(self.body(), self.status, headers, "application/json")

    def event(self) -> bytes:
        """The same as the last event of a stream that had begun (54)."""
        return one_line(f"data: {self.body().decode()}\n\n").encode()


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param, code="context_length_exceeded")


def model_not_found(model: str, served: str) -> ApiError:
    name = model if len(model) <= 100 else model[:100] + "..."
    message = f"The model {name!r} does not exist; this cluster serves {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def from_validation(error: ValidationError) -> ApiError:
    """The first problem of a body, with the path of the field: `messages[2].content` (20)."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if first["type"] == "extra_forbidden":
        return bad_request(f"Unrecognized request argument: {path}", path, "unknown_parameter")
    if first["type"] == "missing":
        return bad_request(f"Missing required parameter: {path}", path, "missing_required_parameter")
    text = first["msg"].removeprefix("Value error, ")
    return bad_request(f"Invalid value for {path}: {text}" if path else text, path or None)

"""From the bytes of a request to a checked model; every problem is an ApiError, never a 500 (16)."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from cluster.api.errors import ApiError, bad_request, from_validation

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises ApiError 413 as soon as it is known to be too large, chunked bodies included (57)."""
    too_large = ApiError(413, f"The request body must not exceed {max_bytes} bytes.", code="request_too_large")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def read_json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """Raises ApiError 400 for another content type, an empty body, malformed JSON and JSON that is no object (16)."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise bad_request(f"The content type must be application/json, got {content_type[:100]!r}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ApiError(415, f"The body must not be encoded, got Content-Encoding {encoding[:100]!r}.")
    body = await read_body(request, max_bytes)
    if not body.strip():
        raise bad_request("The request body is empty; a JSON object is required.")
    try:
        # NaN and Infinity are read here, so that the field that holds one is named below (18).
        value = from_json(body, allow_inf_nan=True)
    except ValueError as error:
        raise bad_request(f"The request body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request(f"The request body must be a JSON object, got {_json_type(value)}.")
    return value


def validate(model: type[Model], fields: dict[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from error


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")

"""What the page of the API says of each path: bodies in full, answers, errors."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from cluster.api.responses import ChatCompletion, Completion, ModelList

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field at fault"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ERRORS = {
    "400": "a field is missing, wrong or asks for what is not supported; `param` names it",
    "401": "the API key is missing or wrong",
    "403": "the path needs an admin key",
    "404": "the model or path does not exist",
    "408": "the deadline passed",
    "413": "the body is too large",
    "415": "the body is encoded (Content-Encoding)",
    "429": "too many requests: of this key, or waiting in every replica; see Retry-After",
    "431": "a header is too large",
    "500": "the server failed",
    "502": "the ingress ended before it answered",
    "503": "no replica or ingress is there; see Retry-After",
    "504": "the ingress did not answer in time",
}
_ANSWERS: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/models": ModelList,
}
_STREAMED = ("/v1/chat/completions", "/v1/completions")


def operation(path: str, body: type[BaseModel] | None) -> dict[str, Any]:
    """For FastAPI's `openapi_extra`. The handlers read bodies themselves, so FastAPI knows nothing of them."""
    described: dict[str, Any] = {"responses": {"200": _success(path), **_errors()}}
    if body is not None:
        content = {"application/json": {"schema": _schema(body)}}
        described["requestBody"] = {"required": True, "content": content}
    if "{model:path}" in path:
        parameter = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [parameter]
    return described


def _success(path: str) -> dict[str, Any]:
    if path == "/metrics":
        return {"description": "all metrics of the cluster", "content": {"text/plain": {"schema": {"type": "string"}}}}
    answer = _ANSWERS.get(path)
    content: dict[str, Any] = {"application/json": {"schema": _schema(answer) if answer else {"type": "object"}}}
    if path in _STREAMED:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {"description": "the answer", "content": content}


def _errors() -> dict[str, Any]:
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, definitions)
    return inlined


def _inlined(value: Any, definitions: Mapping[str, Any]) -> Any:
    """Each body is shown in full; none of these models refers to itself."""
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str):
            return _inlined(definitions[reference.rsplit("/", 1)[-1]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    if isinstance(value, list):
        return [_inlined(item, definitions) for item in value]
    return value

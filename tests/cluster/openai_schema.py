"""Checks answers against the official OpenAI schemas."""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

_FILE = Path(__file__).parents[1] / "data" / "openai_openapi_subset.json"


@cache
def _document() -> dict[str, Any]:
    document = json.loads(_FILE.read_text())
    # The official server itself sends null for the first token of an echoed prompt, which has no logprob.
    logprobs = document["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]
    for lists in logprobs["properties"]["logprobs"]["anyOf"][:1]:
        for name in ("token_logprobs", "top_logprobs"):
            kind = lists["properties"][name]["items"]
            kind["type"] = [kind["type"], "null"]
    # Chunks of a streamed completion have the schema of the whole one, in which the finish reason is never null;
    # the official server itself sends null until the last chunk.
    chunk = copy.deepcopy(document["components"]["schemas"]["CreateCompletionResponse"])
    reason = chunk["properties"]["choices"]["items"]["properties"]["finish_reason"]
    reason.update(type=["string", "null"], enum=[*reason["enum"], None])
    # With include_usage all chunks but the last have a usage of null: the schema says so in its text alone.
    chunk["properties"]["usage"] = {"anyOf": [chunk["properties"]["usage"], {"type": "null"}]}
    document["components"]["schemas"]["CompletionChunk"] = chunk
    return document


@cache
def _validator(name: str) -> Draft202012Validator:
    registry = Registry().with_resource("openai", Resource(contents=_document(), specification=DRAFT202012))
    return Draft202012Validator({"$ref": f"openai#/components/schemas/{name}"}, registry=registry)


def check(name: str, value: object) -> None:
    """Raises jsonschema.ValidationError where `value` is not what the schema called `name` says."""
    _validator(name).validate(value)

"""Fields of other servers and of the official API that are not served, and what is done with each.

A field that would change the answer is refused by name unless it holds the value that asks for nothing. A field that
changes nothing is dropped. What is in neither table and in no model is refused by the model: a misspelt `max_token`
must not pass silently.
"""

from collections.abc import Mapping
from typing import Any

from cluster.api.errors import ApiError

HARMLESS = frozenset(
    {
        "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "prompt_cache_options", "prediction", "request_id",
    }
)  # fmt: skip
"""Accounting, hints and names. `request_id` never becomes an internal id (39)."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "skip_special_tokens": (True,),
    # SGLang's and vLLM's, which their routers write into every body that they pass on.
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
}
CHAT_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "moderation": (),
    "continue_final_message": (False,),
    # A model's reasoning is never told apart from its answer here, so there is nothing to separate or leave out.
    "separate_reasoning": (True, False),
    "stream_reasoning": (True, False),
    "include_reasoning": (True,),
}
COMPLETION_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    "suffix": ("",),
    "best_of": (1,),
}


def drop_unsupported(fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """`fields` without what asks for nothing. Raises ApiError 400 that names the field which asks for something."""
    kept = {}
    for name, value in fields.items():
        if name in HARMLESS:
            continue
        if name not in neutral:
            kept[name] = value
        elif value is not None and value not in neutral[name]:
            message = f"{name} is not supported by this server; leave it out."
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    return kept

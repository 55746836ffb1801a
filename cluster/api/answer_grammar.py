"""The grammar that an answer with tools or a response format must match, in llguidance's Lark dialect.

JSON is written as Python's `json.dumps` writes it, without line breaks: small models would drift into endless blanks.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from cluster.api.enforceable_schema import as_grammar, problem_of
from cluster.api.errors import bad_request
from cluster.api.tool_calls import CLOSING, OPENING
from cluster.api.tools import Function

_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def json_grammar(schema: dict[str, Any], strict: bool) -> str:
    return f"start: {as_grammar(schema, strict)}"


def tool_grammar(
    functions: Sequence[Function], *, required: bool, parallel: bool, otherwise: tuple[dict[str, Any], bool] | None
) -> str:
    """required: calls and nothing else. parallel: more than one call.

    otherwise: schema and strictness of an answer that calls nothing; None is free text, in which calls may stand.
    """
    rules = _call_rules(functions)
    calls = 'call ("\\n" call)*' if parallel else "call"
    if required:
        return f"start: {calls}\n{rules}"
    if otherwise is not None:
        return f"start: {calls} | answer\nanswer: {as_grammar(*otherwise)}\n{rules}"
    start = "(lead body)* TEXT" if parallel else "lead body | TEXT"
    return f"start: {start}\nTEXT: /(.|\\n)*/\nlead[lazy]: TEXT {json.dumps(OPENING)}\n{rules}"


def _call_rules(functions: Sequence[Function]) -> str:
    rules = [f"call: {json.dumps(OPENING)} body"]
    rules.append(
        f'body: "\\n" ({" | ".join(f"call_{i}" for i in range(len(functions)))}) {json.dumps(chr(10) + CLOSING)}'
    )
    for number, function in enumerate(functions):
        head = json.dumps(f'{{"name": "{function.name}", "arguments": ')
        arguments = as_grammar(function.parameters or _NO_PARAMETERS, bool(function.strict))
        rules.append(f'call_{number}: {head} arguments_{number} "}}"\narguments_{number}: {arguments}')
    return "\n".join(rules)


async def check_grammar(grammar_of: Callable[[], str | None], param: str) -> None:
    """Raises ApiError 400 for a schema that cannot be enforced, before anything is sent to a replica.

    grammar_of: makes the grammar, which may take a while; called in another thread.
    """
    problem = await asyncio.to_thread(lambda: _problem_of(grammar_of()))
    if problem:
        raise bad_request(f"Invalid value for {param}: {problem}", param)


@lru_cache(maxsize=256)
def _problem_of(grammar: str | None) -> str:
    return "" if grammar is None else problem_of(grammar)

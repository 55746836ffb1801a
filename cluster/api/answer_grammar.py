"""The grammar that an answer with tools or a response format must match, in llguidance's Lark dialect.

JSON is written as Python's `json.dumps` writes it, without line breaks: small models would drift into endless blanks.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from cluster.api.errors import bad_request
from cluster.api.json_schema import as_grammar, problem_of
from cluster.api.tagged_grammar import NotEnforceable, literal, regex_of, tagged_rules
from cluster.api.tools import Function
from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import HERMES

_JSON_LEXEMES = re.compile(r'"[^"]*"|[{}]|[:,] ')
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def json_grammar(schema: dict[str, Any], strict: bool) -> str:
    return f"start: {as_grammar(schema, strict)}"


def tool_grammar(
    functions: Sequence[Function],
    *,
    required: bool,
    parallel: bool,
    otherwise: tuple[dict[str, Any], bool] | None,
    form: ToolForm = HERMES,
) -> str:
    """required: calls and nothing else. parallel: more than one call.

    otherwise: schema and strictness of an answer that calls nothing; None is free text, in which calls may stand.
    Raises NotEnforceable for a strict schema that this form cannot hold a model to.
    """
    parallel = parallel and not form.one_call
    rules = _call_rules(functions, form, parallel, beside_json=otherwise is not None and not form.trigger)
    between = literal(form.between, form.token_ids)
    # What holds all calls together holds several of them itself.
    calls = f"group ({between} group)*" if parallel and not form.before_all else "group"
    if not form.trigger:
        lead = f"({literal(form.lead, form.token_ids)})? " if form.lead else ""
        calls = lead + calls
    if required:
        return f"start: {calls}\n{rules}"
    if otherwise is not None:
        return f"start: {calls} | answer\nanswer: {as_grammar(*otherwise)}\n{rules}"
    if not form.trigger:
        return f"start: {calls} | NO_CALL\nNO_CALL: {_no_call(functions, form)}\n{rules}"
    start = "(lead group_rest)* TEXT" if parallel else "lead group_rest | TEXT"
    lazy = "" if form.trigger in form.token_ids else "[lazy]"
    lead = f"lead{lazy}: TEXT {literal(form.trigger, form.token_ids)}"
    return f"start: {start}\nTEXT: /(.|\\n)*/\n{lead}\n{rules}"


def _call_rules(functions: Sequence[Function], form: ToolForm, parallel: bool, beside_json: bool) -> str:
    """`group`: all calls that stand together, `group_rest`: the same behind the form's trigger.

    beside_json: other JSON may stand in their place, so that calls must be cut into the same lexemes.
    """

    def text(part: str) -> str:
        return literal(part, form.token_ids)

    opening = form.before_all + form.before_name if form.trigger else ""
    more = f" ({text(form.between + form.before_name)} call)*" if parallel and form.before_all else ""
    rest = f"{text(opening.removeprefix(form.trigger))} call{more} {text(form.after_all)}"
    rules = [
        f"group: {text(form.trigger)} group_rest",
        f"group_rest: {rest}",
        f"call: {' | '.join(f'call_{number}' for number in range(len(functions)))}",
    ]
    for number, function in enumerate(functions):
        head, tail = text(function.name + form.before_arguments), text(form.after_arguments)
        if not form.trigger:
            # In one lexeme that ends where it is complete: a text that goes on otherwise would go on in it.
            whole = form.before_name + function.name + form.before_arguments
            head = " ".join(map(text, _JSON_LEXEMES.findall(whole))) if beside_json else f"head_{number}"
            rules.append(f"head_{number}[lazy]: {text(whole)}")
        parameters, strict = function.parameters or _NO_PARAMETERS, bool(function.strict)
        name = f"arguments_{number}"
        rules.append(f"call_{number}: {head} {name} {tail}")
        if form.tags is None:
            rules.append(f"{name}: {as_grammar(parameters, strict)}")
        else:
            rules.append(tagged_rules(name, parameters, strict, form.tags, form.token_ids))
    return "\n".join(rules)


def _no_call(functions: Sequence[Function], form: ToolForm) -> str:
    """Any text that does not begin as a call; the reader would take it for one."""
    lead = rf"({regex_of(form.lead)})?\s*" if form.lead and form.lead not in form.token_ids else ""
    names = "|".join(function.name for function in functions)
    head = rf"{regex_of(form.before_name)}({names}){regex_of(form.before_arguments)}"
    return rf"/(.|\n)*/ & ~/\s*{lead}{head}(.|\n)*/"


async def check_grammar(grammar_of: Callable[[], str | None], param: str) -> None:
    """Raises ApiError 400 for a schema that cannot be enforced, before anything is sent to a replica.

    grammar_of: makes the grammar, which may take a while; called in another thread.
    """

    def problem_now() -> str:
        try:
            return _problem_of(grammar_of())
        except NotEnforceable as error:
            return str(error)

    problem = await asyncio.to_thread(problem_now)
    if problem:
        raise bad_request(f"Invalid value for {param}: {problem}", param)


@lru_cache(maxsize=256)
def _problem_of(grammar: str | None) -> str:
    return "" if grammar is None else problem_of(grammar)

"""What a chat template does with tools and their calls, found out by rendering one, and messages as it wants them."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic_core import from_json

from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import HERMES, KNOWN_FORMS
from cluster.text.tool_prompt import plain_messages, with_tools_as_text

logger = logging.getLogger(__name__)

Message = dict[str, Any]
Render = Callable[[Sequence[Message], Sequence[Message]], str]
"""Messages and tools to text; raises ValueError where the template refuses them."""

_NAME, _ARGUMENTS = "probe_function", {"probe_key": "probe_value"}
_USER: Message = {"role": "user", "content": "hi"}
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "None.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string", "description": "None."}}},
    },
}
_SHORT_ID_CHARACTERS = 9
"""Of Mistral's templates, which take letters and digits alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTools:
    """form: what calls are written and read in. writes_calls: the template itself writes earlier calls in this form.

    tells_tools: it tells the model of the tools. shows_calls: it writes them, be it in no known form.
    arguments_as_text: its expressions need arguments that are JSON text.
    """

    form: ToolForm = HERMES
    writes_calls: bool = False
    tells_tools: bool = False
    shows_calls: bool = False
    arguments_as_text: bool = False

    def prepared(
        self, messages: Sequence[Message], tools: Sequence[Message]
    ) -> tuple[Sequence[Message], Sequence[Message]]:
        """The conversation as the template takes it: natively, or with tools and calls written into the messages."""
        calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
        if tools and not self.tells_tools:
            if not self.writes_calls:
                return plain_messages(messages, tools), ()
            messages, tools = with_tools_as_text(messages, tools, self.form), ()
        elif calls and not tools and not self.shows_calls:
            return plain_messages(messages, ()), ()
        return (self._native(messages) if calls and self.writes_calls else messages), tools

    def _native(self, messages: Iterable[Message]) -> list[Message]:
        written: list[Message] = []
        for message in messages:
            if message.get("tool_call_id") is not None and self.form.id_characters:
                message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
            calls = [self._call(call) for call in message.get("tool_calls") or ()]
            if not calls:
                written.append(message)
                continue
            if not self.form.one_call:
                written.append({**message, "tool_calls": calls})
                continue
            written += [
                {**message, "content": "" if number else message["content"], "tool_calls": [call]}
                for number, call in enumerate(calls)
            ]
        return written

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments = function["arguments"]
        if self.arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        elif self.form.tags is not None and not isinstance(arguments, dict):
            arguments = _as_object(arguments)  # such templates write one parameter after the other
        changed = {**call, "function": {**function, "arguments": arguments}}
        if self.form.id_characters and "id" in call:
            changed["id"] = _short_id(call["id"])
        return changed


def _as_object(arguments: Any) -> dict[str, Any]:
    """Of a text that was cut what is there of its object; anything else becomes the one parameter of an object."""
    if isinstance(arguments, str):
        with suppress(ValueError):
            begun = from_json(arguments, allow_partial="trailing-strings")
            if isinstance(begun, dict):
                return begun
    return {"arguments": arguments}


def find_template_tools(render: Render, template: str, token_ids: Mapping[str, int]) -> TemplateTools:
    """token_ids: the tokenizer's special tokens. A template in whose calls no form is recognised, but which tells the
    model to write `<tool_call>`, is taken for one of Hermes."""
    rendered = _rendered(render, [_USER], [_TOOL])
    tells_tools = _NAME in rendered
    found = _written_form(render) if "tool_calls" in template else None
    if found is None:
        shows_tools = tells_tools and HERMES.trigger in rendered
        if tells_tools and not shows_tools:
            logger.warning("the chat template writes tool calls in no known form; tools are told in the system message")
        form = _with_tokens(HERMES, token_ids)
        silent: Message = {"role": "assistant", "content": ""}
        calling = {**silent, "tool_calls": [_call_of("1")]}
        shown = _rendered(render, [_USER, calling], [])
        # A template that takes neither conversation is left to say so itself.
        shows_calls = "tool_calls" in template and (not shown or shown != _rendered(render, [_USER, silent], []))
        return TemplateTools(form=form, writes_calls=shows_tools, tells_tools=shows_tools, shows_calls=shows_calls)
    return replace(found, form=_with_tokens(found.form, token_ids), tells_tools=tells_tools, shows_calls=True)


def _written_form(render: Render) -> TemplateTools | None:
    for as_text, id_characters in product((False, True), (None, _SHORT_ID_CHARACTERS)):
        tools = TemplateTools(form=replace(HERMES, id_characters=id_characters), arguments_as_text=as_text)
        calls = [tools._call(call) for call in (_call_of("call_0000000001"), _call_of("call_0000000002"))]
        one = _conversation(render, calls[:1])
        form = _form_in(one)
        if form is None:
            continue
        several = _form_in(_conversation(render, calls)) is not None
        return replace(tools, form=replace(form, id_characters=id_characters, one_call=not several), writes_calls=True)
    return None


def _call_of(id: str) -> Message:
    return {"id": id, "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}}


def _conversation(render: Render, calls: Sequence[Message]) -> str:
    """With the calls' results, and where the template refuses that, without; empty where it refuses both."""
    messages = [_USER, {"role": "assistant", "content": "", "tool_calls": list(calls)}]
    results = [{"role": "tool", "content": "1", "tool_call_id": call["id"], "name": _NAME} for call in calls]
    return _rendered(render, [*messages, *results], [_TOOL]) or _rendered(render, messages, [_TOOL])


def _rendered(render: Render, messages: Sequence[Message], tools: Sequence[Message]) -> str:
    with suppress(ValueError):
        return render(messages, tools)
    return ""


def _form_in(rendered: str) -> ToolForm | None:
    """The form of the probe's call: to the letter, else but for its blanks."""
    for squeeze in (str, lambda text: re.sub(r"\s+", "", text)):
        for form in KNOWN_FORMS:
            head = form.write([(_NAME, _ARGUMENTS)]).removesuffix(form.after_arguments + form.after_all)
            if squeeze(head) in squeeze(rendered):
                return form
    return None


def _with_tokens(form: ToolForm, token_ids: Mapping[str, int]) -> ToolForm:
    texts = form.literals
    return replace(form, token_ids={content: id for content, id in token_ids.items() if content in texts})


def _short_id(id: str) -> str:
    if re.fullmatch(rf"[a-zA-Z0-9]{{{_SHORT_ID_CHARACTERS}}}", id):
        return id
    return hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:_SHORT_ID_CHARACTERS]

"""Read the arguments of one call from text that comes in pieces, and give them out as pieces of JSON."""

import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

from cluster.api.call_openings import num_held
from cluster.api.json_schema import References
from cluster.api.parameter_kinds import is_text_alone, json_of, kinds_of
from cluster.text.tool_forms.form import ParameterTags, ToolForm


class ArgumentReader(Protocol):
    def read(self, text: str) -> tuple[str, str, bool]:
        """text: all that is not read yet. Returns new JSON, what is left of the text, and whether this was all."""


def argument_reader(form: ToolForm, parameters: Mapping[str, Any] | None) -> ArgumentReader:
    """parameters: the called function's schema."""
    return ObjectReader() if form.tags is None else TaggedReader(form.tags, form.after_arguments, parameters)


class ObjectReader:
    """A JSON object, given out as it is written."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def read(self, text: str) -> tuple[str, str, bool]:
        for position, letter in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped, self._in_string = letter == "\\", letter != '"'
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return text[: position + 1], text[position + 1 :], True
        return text, "", False


class TaggedReader:
    """Parameters between tags. A text is given out as it is written, any other value when it is complete."""

    def __init__(self, tags: ParameterTags, end: str, parameters: Mapping[str, Any] | None):
        """end: what follows the last parameter."""
        self._tags = tags
        self._end = end.split()[0]
        properties = (parameters or {}).get("properties")
        self._properties: dict[str, Any] = properties if isinstance(properties, dict) else {}
        self._references = References(parameters or {})
        value_tag = r"\s*".join(map(re.escape, tags.value_tag.split()))
        # Whether a break follows is only known from the next character.
        first_break = rf"(?:{tags.first_break}|(?=.))" if tags.first_break else ""
        self._key_pattern = re.compile(f"{re.escape(tags.before_key)}(.*?){value_tag}{first_break}", re.DOTALL)
        self._kinds: frozenset[str] | None = None
        """Of the value that is being read."""
        self._num_values = 0

    def read(self, text: str) -> tuple[str, str, bool]:
        pieces: list[str] = []
        is_last = False
        while not is_last:
            step = self._key(text.lstrip()) if self._kinds is None else self._value(text, self._kinds)
            if step is None:
                break
            piece, text, is_last = step
            pieces.append(piece)
        return "".join(pieces), text, is_last

    def _key(self, text: str) -> tuple[str, str, bool] | None:
        if text.startswith(self._end):
            return "}" if self._num_values else "{}", text, True
        match = self._key_pattern.match(text)
        if match is None:
            return None
        self._kinds = kinds_of(self._properties.get(match[1]), self._references)
        self._num_values += 1
        opening = f"{'{' if self._num_values == 1 else ', '}{json.dumps(match[1], ensure_ascii=False)}: "
        return opening + ('"' if is_text_alone(self._kinds) else ""), text[match.end() :], False

    def _value(self, text: str, kinds: frozenset[str]) -> tuple[str, str, bool] | None:
        value, end_tag, rest = text.partition(self._tags.end_tag)
        if end_tag:
            self._kinds = None
            value = value.removesuffix(self._tags.last_break)
            return _escaped(value) + '"' if is_text_alone(kinds) else json_of(value, kinds), rest, False
        held = max(num_held(text, self._tags.end_tag), num_held(text, self._tags.last_break + self._tags.end_tag))
        certain = text[: len(text) - held]
        if not certain or not is_text_alone(kinds):
            return None
        return _escaped(certain), text[len(certain) :], False


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]

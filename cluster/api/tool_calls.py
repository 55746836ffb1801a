"""Finds tool calls in an answer's text, in the form that the model writes (`cluster.text.tool_forms`)."""

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache

from cluster.api.argument_readers import ArgumentReader, argument_reader
from cluster.api.call_openings import call_opening
from cluster.api.tools import Function
from cluster.text.tool_forms.form import ToolForm
from cluster.text.tool_forms.known_forms import HERMES


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one call. id and name come with the first piece, arguments are JSON text in pieces."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class ParsedText:
    content: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)

    def add_call(self, delta: ToolCallDelta) -> None:
        """Pieces of one call become one."""
        if self.calls and self.calls[-1].index == delta.index:
            self.calls[-1] = replace(self.calls[-1], arguments=self.calls[-1].arguments + delta.arguments)
        else:
            self.calls.append(delta)


class _State(Enum):
    CONTENT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    BETWEEN = auto()


class ToolCallParser:
    """Gives the same whether the text comes whole or in pieces. A call that ends before its arguments begin is neither
    a call nor content: no client could use it."""

    def __init__(
        self,
        form: ToolForm = HERMES,
        functions: Sequence[Function] = (),
        new_id: Callable[[int | None], str] | None = None,
    ):
        """functions: what may be called; without them, any name. new_id: makes an id of so many characters."""
        self._form = form
        self._new_id = new_id or _random_id
        self._parameters = {function.name: function.parameters for function in functions}
        self._opening = call_opening(form, list(self._parameters))
        self._patterns = _patterns(form, tuple(self._parameters))
        self._head = self._patterns.first_head
        self._arguments_of: ArgumentReader | None = None
        self._state = _State.CONTENT
        self._buffer = ""
        self.num_calls = 0

    def feed(self, text: str, final: bool = False, is_cut: bool = False) -> ParsedText:
        """What became certain with this text. final: nothing will follow. is_cut: more would have followed, so that
        what may be the beginning of a call at the end is taken for one."""
        self._buffer += text
        parsed = ParsedText()
        step = {
            _State.CONTENT: self._content,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._arguments,
            _State.TAIL: self._tail,
            _State.BETWEEN: self._between,
        }
        while step[self._state](parsed):
            pass
        if final:
            self._end(parsed, is_cut)
        return parsed

    def _content(self, parsed: ParsedText) -> bool:
        length, is_call = self._opening.find(self._buffer, self.num_calls)
        before = self._buffer[:length].rstrip()  # blanks before a call are no content
        parsed.content += before
        self._buffer = self._buffer[length if is_call else len(before) :]
        if is_call:
            self._state, self._head = _State.HEAD, self._patterns.first_head
        return is_call

    def _read_head(self, parsed: ParsedText) -> bool:
        head = self._head.match(self._buffer)
        if head is None:
            return False
        parsed.add_call(ToolCallDelta(self.num_calls, "", self._new_id(self._form.id_characters), head[1]))
        self._buffer, self._state = self._buffer[head.end() :], _State.ARGUMENTS
        self._arguments_of = argument_reader(self._form, self._parameters.get(head[1]))
        return True

    def _arguments(self, parsed: ParsedText) -> bool:
        assert self._arguments_of is not None
        piece, self._buffer, is_last = self._arguments_of.read(self._buffer)
        if piece:
            parsed.add_call(ToolCallDelta(self.num_calls, piece))
        if is_last:
            self.num_calls += 1
            self._state = _State.TAIL
        return is_last

    def _tail(self, parsed: ParsedText) -> bool:
        tail = self._patterns.tail.search(self._buffer)
        if tail is None:
            return False
        self._buffer = self._buffer[tail.end() :]
        self._state = _State.BETWEEN if self._form.before_all else _State.CONTENT
        return True

    def _between(self, parsed: ParsedText) -> bool:
        """Inside of what holds all calls together: either it ends, or the next one begins."""
        text = self._buffer.lstrip()
        if text.startswith(self._form.after_all):
            self._buffer, self._state = text[len(self._form.after_all) :], _State.CONTENT
            return True
        if self._patterns.next_head.match(self._buffer) is None:
            return False
        self._state, self._head = _State.HEAD, self._patterns.next_head
        return True

    def _end(self, parsed: ParsedText, is_cut: bool) -> None:
        if self._state is _State.CONTENT:
            held = self._opening.num_held(self._buffer, self.num_calls) if is_cut else 0
            text = self._buffer[: len(self._buffer) - held]
            parsed.content += text.rstrip() if self.num_calls or held else text
        self._buffer = ""


@dataclass(frozen=True, slots=True)
class _Patterns:
    """first_head: from where a call begins to its arguments; the name is the first group. next_head: of a later one
    within the same calls. tail: what ends a call."""

    first_head: re.Pattern[str]
    next_head: re.Pattern[str]
    tail: re.Pattern[str]


@lru_cache(maxsize=256)
def _patterns(form: ToolForm, names: tuple[str, ...]) -> _Patterns:
    name = "|".join(map(re.escape, names)) or r"[\w.-]+"
    end = re.escape(form.after_arguments.strip())
    begin_of_arguments = r"\{" if form.tags is None else f"{re.escape(form.tags.before_key)}|{end}"
    rest = rf"\s*({name}){loose(form.before_arguments)}\s*(?={begin_of_arguments})"
    lead = "" if form.trigger else rf"\s*(?:{loose(form.lead)}|{loose(form.between)})?\s*"
    return _Patterns(
        first_head=re.compile(lead + loose(form.before_all + form.before_name) + rest),
        next_head=re.compile(loose(form.between + form.before_name) + rest),
        tail=re.compile(loose(form.after_arguments)),
    )


def loose(text: str) -> str:
    """A pattern of the text with any blanks where it has some."""
    return re.sub(r"(?:\\?\s)+", lambda _: r"\s*", re.escape(text))


def _random_id(num_characters: int | None) -> str:
    return f"call_{secrets.token_hex(12)}" if num_characters is None else secrets.token_hex(32)[:num_characters]

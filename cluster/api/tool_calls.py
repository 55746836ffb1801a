"""Finds tool calls in an answer's text: `<tool_call>` around `{"name": ..., "arguments": {...}}`."""

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


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


class ToolCallParser:
    """Gives the same whether the text comes whole or in pieces. A call that ends before its arguments begin is neither
    a call nor content: no client could use it."""

    def __init__(self, new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}"):
        self._new_id = new_id
        self._state = _State.CONTENT
        self._buffer = ""
        self._depth = 0
        self._in_string = self._escaped = False
        self.num_calls = 0

    def feed(self, text: str, final: bool = False, is_cut: bool = False) -> ParsedText:
        """What became certain with this text. final: nothing will follow. is_cut: more would have followed, so that
        what may be the beginning of a call at the end is taken for one."""
        self._buffer += text
        parsed = ParsedText()
        step = {
            _State.CONTENT: self._content,
            _State.HEAD: self._head,
            _State.ARGUMENTS: self._arguments,
            _State.TAIL: self._tail,
        }
        while step[self._state](parsed):
            pass
        if final:
            self._end(parsed, is_cut)
        return parsed

    def _content(self, parsed: ParsedText) -> bool:
        before, opening, after = self._buffer.partition(OPENING)
        if opening:
            parsed.content += before.rstrip()
            self._buffer, self._state = after, _State.HEAD
            return True
        end = len(before) - _num_held(before)
        end = _start_of_blanks(before[:end])  # blanks before a call are no content
        parsed.content += before[:end]
        self._buffer = before[end:]
        return False

    def _head(self, parsed: ParsedText) -> bool:
        head = _HEAD.match(self._buffer)
        if head is None:
            return False
        parsed.add_call(ToolCallDelta(self.num_calls, "", self._new_id(), json.loads(head[1])))
        self._buffer, self._state = self._buffer[head.end() :], _State.ARGUMENTS
        self._depth, self._in_string, self._escaped = 0, False, False
        return True

    def _arguments(self, parsed: ParsedText) -> bool:
        end = self._end_of_object()
        text = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(text) :]
        if text:
            parsed.add_call(ToolCallDelta(self.num_calls, text))
        if end is None:
            return False
        self.num_calls += 1
        self._state = _State.TAIL
        return True

    def _end_of_object(self) -> int | None:
        """Where the object that the arguments are ends in the buffer; None where it goes on."""
        for position, letter in enumerate(self._buffer):
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
                    return position + 1
        return None

    def _tail(self, parsed: ParsedText) -> bool:
        _, closing, after = self._buffer.partition(CLOSING)
        if closing:
            self._buffer, self._state = after, _State.CONTENT
        return bool(closing)

    def _end(self, parsed: ParsedText, is_cut: bool) -> None:
        if self._state is _State.CONTENT:
            held = _num_held(self._buffer) if is_cut else 0
            text = self._buffer[: len(self._buffer) - held]
            parsed.content += text.rstrip() if self.num_calls or held else text
        self._buffer = ""


def _num_held(text: str) -> int:
    """How many characters at the end may be the beginning of a call."""
    for length in range(min(len(text), len(OPENING) - 1), 0, -1):
        if OPENING.startswith(text[-length:]):
            return length
    return 0


def _start_of_blanks(text: str) -> int:
    return len(text.rstrip())

"""Where tool calls begin in an answer that may hold text as well."""

from collections.abc import Sequence
from typing import Protocol

from cluster.text.tool_forms.form import ToolForm


class CallOpening(Protocol):
    def find(self, text: str, num_calls: int) -> tuple[int, bool]:
        """text: what is neither content nor a call yet. num_calls: that came before. Returns how many characters are
        content for sure, and whether a call begins behind them."""

    def num_held(self, text: str, num_calls: int) -> int:
        """How many characters at the end may be the beginning of a call."""


def call_opening(form: ToolForm, names: Sequence[str]) -> CallOpening:
    """names: of the functions that may be called."""
    return MarkedOpening(form.trigger) if form.trigger else BareOpening(form, names)


class MarkedOpening:
    """Calls begin with a mark, wherever it stands."""

    def __init__(self, mark: str):
        self._mark = mark

    def find(self, text: str, num_calls: int) -> tuple[int, bool]:
        position = text.find(self._mark)
        return (position, True) if position >= 0 else (len(text) - num_held(text, self._mark), False)

    def num_held(self, text: str, num_calls: int) -> int:
        return num_held(text, self._mark)


class BareOpening:
    """An answer that begins like a call is one, and behind a call another one may follow; any other answer is text."""

    def __init__(self, form: ToolForm, names: Sequence[str]):
        heads = [_squeezed(f"{form.before_name}{name}{form.before_arguments}{{") for name in names]
        self._first = [lead + head for lead in ("", _squeezed(form.lead)) for head in heads]
        self._next = [_squeezed(form.between) + head for head in heads]
        self._is_text = False

    def find(self, text: str, num_calls: int) -> tuple[int, bool]:
        begun = _squeezed(text)
        if not self._is_text and any(begun.startswith(head) for head in self._heads(num_calls)):
            return 0, True
        if self.num_held(text, num_calls):
            return 0, False
        self._is_text = self._is_text or bool(begun)
        return len(text), False

    def num_held(self, text: str, num_calls: int) -> int:
        begun = _squeezed(text)
        may_begin = bool(begun) and any(head.startswith(begun) for head in self._heads(num_calls))
        return len(text) if may_begin and not self._is_text else 0

    def _heads(self, num_calls: int) -> Sequence[str]:
        return self._next if num_calls else self._first


def num_held(text: str, mark: str) -> int:
    """How many characters at the text's end may be the beginning of the mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0


def _squeezed(text: str) -> str:
    return "".join(text.split())

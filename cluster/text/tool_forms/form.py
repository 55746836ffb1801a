"""What a form of tool calls is: the texts around the calls, their names and their arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTags:
    """Arguments written one by one: `before_key` key `before_value` value `after_value`.

    Strings are written as they are, everything else as JSON. A line break that ends `before_value` or begins
    `after_value` is no part of the value.
    """

    before_key: str
    before_value: str
    after_value: str

    @property
    def value_tag(self) -> str:
        """What opens a value, without the line break behind it."""
        return self.before_value.rstrip("\n")

    @property
    def end_tag(self) -> str:
        """What no value can hold."""
        return self.after_value.strip("\n")

    @property
    def first_break(self) -> str:
        return self.before_value[len(self.value_tag) :]

    @property
    def last_break(self) -> str:
        return self.after_value[: len(self.after_value) - len(self.after_value.lstrip("\n"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """Calls that stand together read

        before_all (before_name NAME before_arguments ARGUMENTS after_arguments) between (...) after_all

    trigger: how `before_all + before_name` begins; free text never holds it. Empty where calls have no mark of their
    own: then they are all that an answer is. lead: may stand before such calls. tags: None where arguments are a JSON
    object. id_characters: of a call's id, where the template takes no other length. one_call: the template takes one
    call a turn. token_ids: the special tokens among these texts, by their content, of the tokenizer in use.
    """

    name: str
    trigger: str
    before_all: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str
    between: str
    after_all: str = ""
    lead: str = ""
    tags: ParameterTags | None = None
    id_characters: int | None = None
    one_call: bool = False
    token_ids: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def literals(self) -> str:
        """All the form's own texts, one after the other."""
        texts = [self.lead, self.before_all, self.before_name, self.before_arguments, self.after_arguments]
        if self.tags is not None:
            texts += [self.tags.before_key, self.tags.before_value, self.tags.after_value]
        return "\n".join([*texts, self.between, self.after_all])

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """calls: name and arguments of each."""
        written = [
            f"{self.before_name}{name}{self.before_arguments}{self._arguments(arguments)}{self.after_arguments}"
            for name, arguments in calls
        ]
        return self.before_all + self.between.join(written) + self.after_all

    def _arguments(self, arguments: Mapping[str, Any]) -> str:
        if self.tags is None:
            return json.dumps(arguments, ensure_ascii=False)
        tags = self.tags
        return "".join(
            f"{tags.before_key}{key}{tags.before_value}{_value(value)}{tags.after_value}"
            for key, value in arguments.items()
        )


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

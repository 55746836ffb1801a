"""Tools of a chat request: what may be called, and whether it must be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cluster.api.json_schema import check_references, without_nulls
from cluster.api.sampling_fields import invalid

MAX_TOOLS = 128
_NAME = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Function(BaseModel):
    """parameters: JSON schema of an object; without it the function takes none.

    strict: parts of the schema that cannot be enforced are an error; else they are not enforced.
    """

    model_config = ConfigDict(strict=True, extra="ignore")

    name: _NAME
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _something_can_match(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is None:
            return None
        value = without_nulls(value)
        check_references(value)
        return value


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """mode: "none", "auto" or "required". names: the only functions that may be called; None allows all.

    is_one_call: the answer is one call of the named function and nothing else.
    """

    mode: str
    names: tuple[str, ...] | None = None
    is_one_call: bool = False


def read_tool_choice(value: Any) -> ToolChoice | None:
    """The official forms: a word, one named function, or a list of allowed ones. None is left to the default."""
    if value is None:
        return None
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return ToolChoice(value)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        return ToolChoice("required", (_function_name(value),), is_one_call=True)
    if kind == "allowed_tools":
        allowed = value.get("allowed_tools")
        if isinstance(allowed, dict) and allowed.get("mode") in ("auto", "required"):
            tools = allowed.get("tools")
            if isinstance(tools, list) and tools:
                return ToolChoice(allowed["mode"], tuple(_function_name(tool) for tool in tools))
        raise invalid("allowed_tools must have a mode of auto or required and a non-empty list of tools")
    raise invalid('it must be "none", "auto", "required", one named function or allowed_tools')


def _function_name(value: Any) -> str:
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("a tool must be named as {type: function, function: {name: ...}}")
    return name


def check_tools(tools: Sequence[Tool]) -> None:
    names = [tool.function.name for tool in tools]
    twice = next((name for position, name in enumerate(names) if name in names[:position]), None)
    if twice is not None:
        raise invalid(f"the function {twice!r} stands in it twice")

"""Tool calls that an assistant's earlier message holds, as clients send them back."""

import contextlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import from_json

from cluster.api.sampling_fields import invalid


def _json_text_or_value(value: Any) -> Any:
    if value is not None and not isinstance(value, str | dict | list):
        raise invalid("it must be JSON text or an object")
    return value


class CalledFunction(BaseModel):
    """arguments: JSON text as the API gives it, or the value itself, which clients of open models send."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    arguments: Annotated[Any, BeforeValidator(_json_text_or_value)]


class CalledTool(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    id: str
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Templates expect arguments as an object. No arguments at all (null, an empty text) are an empty one, as in
        vLLM and SGLang; what is no JSON stays the text that it is."""
        arguments: Any = self.function.arguments
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            arguments = {}
        elif isinstance(arguments, str):
            with contextlib.suppress(ValueError):
                arguments = from_json(arguments)  # it reads no half of a surrogate pair, which no tokenizer takes
            arguments = {} if arguments is None else arguments
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}

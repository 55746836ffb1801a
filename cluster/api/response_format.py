"""`response_format`: free text, any JSON object, or what a schema says."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class JsonSchemaFormat(BaseModel):
    """strict: parts of the schema that cannot be enforced are an error; else they are not enforced."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    json_schema: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @property
    def schema_to_match(self) -> tuple[dict[str, Any], bool] | None:
        """The JSON schema of the answer and whether all of it must be enforced; None for free text."""
        if self.type == "text":
            return None
        if self.type == "json_object" or self.json_schema is None:
            return {"type": "object"}, False
        return self.json_schema.json_schema or {"type": "object"}, bool(self.json_schema.strict)

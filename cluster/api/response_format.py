"""`response_format`: free text, any JSON object, or what a schema says."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from cluster.api.json_schema import check_references, without_nulls
from cluster.api.sampling_fields import invalid, missing


def _not_null(value: Any) -> Any:
    if value is None:
        raise missing()
    return value


class JsonSchemaFormat(BaseModel):
    """strict: parts of the schema that cannot be enforced are an error; else they are not enforced."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    json_schema: Annotated[dict[str, Any], BeforeValidator(_not_null)] = Field(alias="schema")
    strict: bool | None = None

    @field_validator("json_schema")
    @classmethod
    def _something_can_match(cls, value: dict[str, Any]) -> dict[str, Any]:
        value = without_nulls(value)
        check_references(value)
        return value


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = Field(default=None, validate_default=True)

    @field_validator("json_schema")
    @classmethod
    def _given_where_asked_for(cls, value: JsonSchemaFormat | None, info: ValidationInfo) -> JsonSchemaFormat | None:
        if value is None and info.data.get("type") == "json_schema":
            raise invalid("the type json_schema needs it")
        return value

    @property
    def schema_to_match(self) -> tuple[dict[str, Any], bool] | None:
        """The JSON schema of the answer and whether all of it must be enforced; None for free text."""
        if self.type == "text":
            return None
        if self.json_schema is None or self.type == "json_object":
            return {"type": "object"}, False
        return self.json_schema.json_schema or {"type": "object"}, bool(self.json_schema.strict)

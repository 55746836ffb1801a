"""The grammar of arguments that are written one by one between tags (`cluster.text.tool_forms`)."""

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from cluster.api.json_schema import References, as_grammar, enforceable, problem_of, subschemas
from cluster.api.parameter_kinds import is_text_alone, kinds_of
from cluster.text.tool_forms.form import ParameterTags

_SPECIAL = re.compile(r"[\\/\[\](){}.*+?^$|\"]")
_OF_OBJECTS = frozenset(
    {
        "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas",
    }
)  # fmt: skip
"""Keywords of an object that say more than which parameters there are."""
_OF_TEXTS = ("pattern", "format")


def literal(text: str, token_ids: Mapping[str, int]) -> str:
    """The text as it stands; what is a special token in it is that token, which no text can match."""
    if not token_ids:
        return _quoted(text)
    longest_first = sorted(token_ids, key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    terms = [f"<[{token_ids[part]}]>" if part in token_ids else _quoted(part) for part in parts if part]
    return " ".join(terms) or _quoted("")


def regex_of(text: str) -> str:
    """A regular expression, for between slashes, that matches the text alone."""
    return _SPECIAL.sub(lambda match: "\\" + match[0], text).replace("\n", r"\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class NotEnforceable(ValueError):
    """A strict schema asks for what this form cannot hold a model to."""


def tagged_rules(
    name: str, schema: Mapping[str, Any], strict: bool, tags: ParameterTags, token_ids: Mapping[str, int]
) -> str:
    """Rules of which the one called `name` is all parameters of the schema, in its order.

    strict: what cannot be enforced raises NotEnforceable; else it is left to the model.
    """
    if problem := problem_of(f"start: {as_grammar(dict(schema), strict)}"):
        raise NotEnforceable(problem)
    schema = enforceable(dict(schema), strict)
    references = References(schema)
    if isinstance(schema.get("$ref"), str):
        target = references.target(schema["$ref"])
        schema = {**schema, **(target if isinstance(target, dict) else {})}
    if strict and (beyond := sorted(_OF_OBJECTS & set(schema))):
        raise NotEnforceable(f"{beyond[0]!r} of all parameters cannot be enforced for this model; leave out strict")
    properties = schema.get("properties") or {}
    required = [each for each in schema.get("required") or () if isinstance(each, str)]
    writer = _ParameterWriter(schema, references, strict, tags, token_ids)
    rules, parts = [], []
    for number, key in enumerate(dict.fromkeys([*properties, *required])):
        rule = f"{name}_{number}"
        parts.append(rule if key in required else f"{rule}?")
        rules += writer.parameter(rule, key, properties.get(key, {}))
    if not parts and schema.get("additionalProperties", True) is not False:
        parts.append(f"{name}_any*")
        rules += writer.any_parameter(f"{name}_any")
    return "\n".join([f"{name}: {' '.join(parts) or literal('', {})}", *rules])


class _ParameterWriter:
    def __init__(
        self,
        schema: Mapping[str, Any],
        references: References,
        strict: bool,
        tags: ParameterTags,
        token_ids: Mapping[str, int],
    ):
        self._root = schema
        self._references = references
        self._strict = strict
        self._tags = tags
        self._token_ids = token_ids

    def parameter(self, rule: str, key: str, schema: Any) -> list[str]:
        tags = self._tags
        head = literal(f"{tags.before_key}{key}{tags.before_value}", self._token_ids)
        kinds = kinds_of(schema, self._references)
        if "string" not in kinds:
            value = f"{rule}_value: {self._json(schema)}"
            return [f"{rule}: {head} {rule}_value {literal(tags.after_value, self._token_ids)}", value]
        if is_text_alone(kinds):
            whole = self._text_schema(schema)
            if options := _options(whole):
                words = " | ".join(literal(option, {}) for option in options)
                return [f"{rule}: {head} ({words}) {literal(tags.after_value, self._token_ids)}"]
            return [f"{rule}: {head} {rule}_value", *self._text(f"{rule}_value", whole, key)]
        return [f"{rule}: {head} {rule}_value", *self._text(f"{rule}_value", {}, key)]

    def any_parameter(self, rule: str) -> list[str]:
        tags = self._tags
        before, middle = literal(tags.before_key, self._token_ids), literal(tags.before_value, self._token_ids)
        name = f"{rule.upper()}_KEY: /[^<>\\n]{{1,64}}/"
        return [
            f"{rule}: {before} {rule.upper()}_KEY {middle} {rule}_value",
            name,
            *self._text(f"{rule}_value", {}, ""),
        ]

    def _text(self, rule: str, schema: Mapping[str, Any], key: str) -> list[str]:
        """Up to the end tag, which it cannot hold. Where its length counts, the break before the tag is no part of
        it."""
        if self._strict and (beyond := next((word for word in _OF_TEXTS if word in schema), None)):
            raise NotEnforceable(f"{beyond!r} of the parameter {key!r} cannot be enforced for this model")
        low, high = schema.get("minLength"), schema.get("maxLength")
        tags, rest = self._tags, self._tags.after_value.lstrip("\n").removeprefix(self._tags.end_tag)
        bounds = f"{{{low or 0},{'' if high is None else high}}}" if low or high is not None else "*"
        last_break = regex_of(tags.last_break) if bounds != "*" else ""
        after = literal(rest, self._token_ids)
        if tags.end_tag in self._token_ids:
            return [f"{rule}: /(.|\\n){bounds}{last_break}/ {literal(tags.end_tag, self._token_ids)} {after}"]
        end, terminal = regex_of(tags.end_tag), rule.upper()
        text = f"/(.|\\n){bounds}{last_break}{end}/ & ~/(.|\\n)*{end}(.|\\n)+/"
        return [f"{rule}: {rule}_end {after}", f"{rule}_end[lazy]: {terminal}", f"{terminal}: {text}"]

    def _text_schema(self, schema: Any) -> Mapping[str, Any]:
        """What is said of the text at the schema's top and behind its reference."""
        if not isinstance(schema, dict):
            return {}
        target = self._references.target(schema["$ref"]) if isinstance(schema.get("$ref"), str) else None
        return {**(target if isinstance(target, dict) else {}), **schema}

    def _json(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return as_grammar({}, self._strict)
        if "$ref" in json.dumps(schema):
            schema = _beneath(schema, self._root)
        return as_grammar(schema, self._strict)


def _beneath(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema by itself, with all that it is a part of as a definition, so that references lead where they led."""
    identity = root.get("$id")
    whole, part = copy.deepcopy({name: root[name] for name in root if name != "$id"}), copy.deepcopy(schema)
    for each in [*subschemas(whole), *subschemas(part)]:
        if isinstance(each.get("$ref"), str):
            base, _, place = each["$ref"].partition("#")
            if base in ("", identity) and (not place or place.startswith("/")):
                each["$ref"] = f"#/$defs/root{place}"
    return {**part, "$defs": {"root": whole}}


def _options(schema: Mapping[str, Any]) -> list[str]:
    """The only texts that there are, where a schema lists them."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return [each for each in listed or () if isinstance(each, str)]

"""Texts as terms of llguidance's Lark dialect."""

import json
import re
from collections.abc import Mapping

_SPECIAL = re.compile(r"[\\/\[\](){}.*+?^$|\"]")


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

"""JSON that no client takes for more than one line."""

import re

_LINE_BREAKS = re.compile("[\x85\u2028\u2029]")


def one_line(json_text: str) -> str:
    """Escapes what JSON lets stand and many readers of lines split at (Python's and httpx's among them): U+0085, U+2028,
    U+2029. Outside of strings JSON has none of them, so nothing else changes."""
    if json_text.isascii():
        return json_text
    return _LINE_BREAKS.sub(lambda match: f"\\u{ord(match[0]):04x}", json_text)

"""Reads server-sent events."""

import json
from typing import Any


def events(text: str) -> tuple[list[dict[str, Any]], bool]:
    """The JSON events, and whether [DONE] was the last one."""
    lines = [line for line in text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines), text
    payloads = [line.removeprefix("data: ") for line in lines]
    done = bool(payloads) and payloads[-1] == "[DONE]"
    return [json.loads(payload) for payload in (payloads[:-1] if done else payloads)], done

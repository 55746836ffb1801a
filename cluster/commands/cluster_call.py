"""One question of the command line to a running cluster, and in words what is wrong where it gets no answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

TIMEOUT_SECONDS = 15.0


class ClusterRefused(RuntimeError):
    """The cluster did not answer, refused, or is none; one sentence for the user."""


def ask_cluster(
    url: str, path: str, body: Mapping[str, Any] | None = None, key_file: Path | None = None
) -> dict[str, Any]:
    """POSTs the body, or GETs without one, and returns the JSON object of the answer.

    key_file: not the key itself, which would stand in the list of processes. Raises ClusterRefused.
    """
    if not url.startswith(("http://", "https://")):
        raise ClusterRefused(f"--url must begin with http:// or https://, got {url!r}")
    headers = {"authorization": f"Bearer {_key(key_file)}"} if key_file is not None else {}
    base, method = url.rstrip("/"), "GET" if body is None else "POST"
    try:
        response = httpx.request(
            method, base + path, json=body, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False
        )
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise ClusterRefused(f"{base}{path} gave no answer: {error}") from error
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.status_code == 200 and isinstance(answer, dict):
        return answer
    raise ClusterRefused(_message_of(answer) or not_warmlane(base, path, response.status_code))


def not_warmlane(url: str, path: str, status: int) -> str:
    """What to say of an answer that no cluster would give."""
    return f"{url.rstrip('/')} answered {status} to {path}: is this a Warmlane cluster?"


def _key(key_file: Path) -> str:
    try:
        return key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ClusterRefused(f"cannot read the key file {key_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterRefused(f"the key file {key_file} is no UTF-8 text") from error


def _message_of(answer: Any) -> str | None:
    """The message of an error in the form of Warmlane's API, except for the 404 of a path, which says nothing."""
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(message, str) or message.startswith(("Not Found", "Method Not Allowed")):
        return None
    return message

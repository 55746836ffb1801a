"""Reads a YAML file that a person wrote; what is wrong with it is one line that names the file and the place."""

from pathlib import Path
from typing import Any

import yaml


def read_yaml(path: str | Path) -> Any:
    """What the file holds; None where it is empty.

    Raises ValueError, in one line, for a file that cannot be read, is no UTF-8 or no YAML.
    """
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{path}{_place(error)}: {_problem(error)}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a control character, a date that is none, depth
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from error


def _place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""


def _problem(error: yaml.MarkedYAMLError) -> str:
    return " ".join(text for text in (error.context, error.problem) if text) or "no YAML"

"""Where settings come from, under the names that the user wrote there, and how people write YAML, sizes and paths."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BINARY_UNITS = {"ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)
ENVIRONMENT_PREFIX = "WARMLANE_"


def parse_bytes(name: str, value: str | int) -> int:
    """`2GiB`, `512 MB`, `1.5g` or a plain number of bytes. Raises ValueError that names the field."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    unit = (_UNITS | _BINARY_UNITS).get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{name} must be a size such as 2GiB or 500MB, got {value!r}")
    return int(float(match[1]) * unit)


def format_bytes(count: int) -> str:
    """Three digits with a binary unit, e.g. `1.95 GiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}"


def expanded(name: str) -> Path:
    """The path with "~" replaced. Raises ValueError where that home folder is not known."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{name!r}: {error}") from error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingSource:
    """where: for messages. values: by field name. written: field name -> as it stands there, where that differs."""

    where: str
    values: dict[str, Any]
    kind: str = "setting"
    prefix: str = ""
    written: Mapping[str, str]

    @classmethod
    def command_line(cls, flags: Mapping[str, Any]) -> "SettingSource":
        return cls(where="the command line", values=dict(flags), written={})

    @classmethod
    def environment(cls, variables: Mapping[str, str]) -> "SettingSource":
        """Every variable that begins with WARMLANE_."""
        prefix = ENVIRONMENT_PREFIX
        written = {name.removeprefix(prefix).lower(): name for name in variables if name.startswith(prefix)}
        values = {name: variables[as_written] for name, as_written in written.items()}
        return cls(where="the environment", values=values, kind="variable", prefix=prefix, written=written)

    @classmethod
    def file(cls, path: Path) -> "SettingSource":
        """A YAML mapping; names may have hyphens as flags have. Raises ValueError for anything else."""
        content = read_yaml(path)
        if not isinstance(content, dict | None):
            raise ValueError(f"{path} must hold a mapping of settings, got {type(content).__name__}")
        written = {str(name).replace("-", "_"): str(name) for name in content or {}}
        values = {str(name).replace("-", "_"): value for name, value in (content or {}).items()}
        return cls(where=str(path), values=values, written=written)

    def check_names(self, known: Collection[str], shown: Collection[str]) -> None:
        """known: every name that there is. shown: those a message may propose. Raises ValueError for an unknown one,
        with the names that look like it, or with all where none does."""
        unknown = next((name for name in sorted(self.values) if name not in known), None)
        if unknown is None:
            return
        close = get_close_matches(unknown, shown, n=3, cutoff=0.75)
        advice = "did you mean " if close else "known are "
        proposed = (" or " if close else ", ").join(map(self._spelled, close or shown))
        end = "?" if close else ""
        raise ValueError(
            f"unknown {self.kind} {self.written.get(unknown, unknown)} in {self.where}; {advice}{proposed}{end}"
        )

    def _spelled(self, name: str) -> str:
        return self.prefix + name.upper() if self.prefix else name

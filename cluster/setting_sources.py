"""Where settings come from, under the names that the user wrote there."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cluster.yaml_file import read_yaml

ENVIRONMENT_PREFIX = "WARMLANE_"


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

"""How a model's author wants it sampled: `generation_config.json`, for what a request leaves out."""

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from replica.sampling_params import MIN_REPETITION_PENALTY

_FILE = "generation_config.json"
_BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_REPETITION_PENALTY, 10.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """top_k: 0 is off. What the file does not name has the API's own default."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __str__(self) -> str:
        """What differs from the API's own."""
        differing = [f"{each.name} {getattr(self, each.name):g}" for each in fields(self) if self._differs(each)]
        return ", ".join(differing)

    def _differs(self, each: Any) -> bool:
        return bool(getattr(self, each.name) != each.default)


def read_sampling_defaults(model_dir: str | Path) -> SamplingDefaults:
    """Of a model's folder; a file that is not there says nothing. `do_sample` is not looked at, as in vLLM.

    Raises ValueError for a file that is no JSON object, and for values that no request may have.
    """
    path = Path(model_dir) / _FILE
    if not path.is_file():
        return SamplingDefaults()
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}; --ignore-generation-config leaves it out") from error
    if not isinstance(written, dict):
        raise ValueError(f"{path} must hold a JSON object; --ignore-generation-config leaves it out")
    values: dict[str, Any] = {
        name: _checked(path, name, written[name]) for name in _BOUNDS if written.get(name) is not None
    }
    if "top_k" in values:
        values["top_k"] = max(0, int(values["top_k"]))
    return SamplingDefaults(**values)


def _checked(path: Path, name: str, value: Any) -> float:
    low, high = _BOUNDS[name]
    is_number = isinstance(value, int if name == "top_k" else int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high or (name == "top_p" and not value):
        above = "above 0 and at most 1" if name == "top_p" else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} in {path} must be {above}, got {value!r}; --ignore-generation-config leaves it out")
    return value

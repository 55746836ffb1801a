"""What a model folder says about itself without loading the model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """window: tokens of prompt and answer together that the model was made for; None where its config says nothing.

    dtype: the checkpoint's. weight_bytes: on disk.
    """

    window: int | None
    dtype: str
    weight_bytes: int

    def resolved_dtype(self, configured: str, on_gpu: bool) -> str:
        """auto is the checkpoint's on a GPU and float32 on a CPU."""
        if configured != "auto":
            return configured
        return self.dtype if on_gpu else "float32"

    def loaded_bytes(self, dtype: str) -> int:
        """Memory of the weights in that dtype."""
        return self.weight_bytes * _WIDTH.get(dtype, 4) // _WIDTH.get(self.dtype, 4)

    def max_model_len(self, configured: int | None) -> int:
        """Raises ValueError when it is longer than the window, or when there is neither."""
        if configured is None:
            if self.window is None:
                raise ValueError(
                    "max_model_len must be given: the model's config.json names no max_position_embeddings"
                )
            return self.window
        if self.window is not None and configured > self.window:
            raise ValueError(
                f"max_model_len must be at most the model's window of {self.window} tokens, got {configured}"
            )
        return configured


_WIDTH = {"float32": 4, "float16": 2, "bfloat16": 2}


def read_model_facts(model_dir: str | Path) -> ModelFacts:
    """Raises ValueError when config.json is missing or no JSON, or when there are no weights."""
    folder = Path(model_dir)
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no readable config.json: {error}") from error
    text = config.get("text_config") or config
    weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    if not weights:
        raise ValueError(f"{folder} holds no weights (*.safetensors or *.bin)")
    dtype = next((c[key] for c in (text, config) for key in ("dtype", "torch_dtype") if c.get(key)), "float32")
    return ModelFacts(
        window=text.get("max_position_embeddings"),
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=sum(path.stat().st_size for path in weights),
    )

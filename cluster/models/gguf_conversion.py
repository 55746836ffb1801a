"""Turns a GGUF file into a model folder that loads in seconds. Run as a process of its own, so that torch and the
dequantised weights leave no trace in the caller: `python -m cluster.models.gguf_conversion FILE FOLDER`."""

import os
import sys
from pathlib import Path


def convert(gguf_path: Path, target: Path, model_max_length: int = 8192, *, needs_chat_template: bool = True) -> None:
    """Dequantises to float32 and saves safetensors, config and tokenizer (with its chat template) to `target`.

    model_max_length: tokens of the model's window, which GGUF's tokenizer part does not carry.
    Raises ValueError where the file has no chat template, unless it needs none (a base model).
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = str(gguf_path.parent), gguf_path.name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    # `save_pretrained` refuses a model that remembers being quantised, hence a new one with the same weights.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = "float32"
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model.generation_config = loaded.generation_config
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    if needs_chat_template and not tokenizer.chat_template:
        raise ValueError(f"{name} carries no chat template")
    tokenizer.model_max_length = model_max_length
    tokenizer.save_pretrained(target)
    model.save_pretrained(target, safe_serialization=True)
    readable_by_umask(target)


def readable_by_umask(folder: Path) -> None:
    """Gives the files below the mode of any new file: safetensors writes its own for their owner alone, and a cache
    that several users share, or an image that runs as another user, could not be read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~umask)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

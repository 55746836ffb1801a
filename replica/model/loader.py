"""Loads a transformers model with its tokenizer and refuses what paged attention would serve wrong."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

from replica.config import EngineConfig
from replica.errors import UnsupportedModel
from replica.model.refusals import refuse_unservable_config

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """model: in eval mode on `device`. tokenizer: the fast tokenizer's backend. max_model_len: tokens of the window."""

    model: PreTrainedModel
    tokenizer: Any
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_model_len: int
    dtype: torch.dtype
    device: torch.device


def load_model(config: EngineConfig) -> LoadedModel:
    """Raises UnsupportedModel with the cause, ValueError for a bad max_model_len, OSError where files are missing."""
    device = _device(config.device)
    folder = Path(config.model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json, so it is no transformers model folder")
    model_config = AutoConfig.from_pretrained(config.model)
    text_config = model_config.get_text_config()
    refuse_unservable_config(text_config)
    dtype = _dtype(config.dtype, model_config, device)
    model = AutoModelForCausalLM.from_pretrained(config.model, dtype=dtype, attn_implementation="eager")
    model = model.to(device).eval()
    model.requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    if not tokenizer.is_fast:
        raise UnsupportedModel(f"{config.model}: it has no fast tokenizer, which streaming needs")
    return LoadedModel(
        model=model,
        tokenizer=tokenizer.backend_tokenizer,
        eos_token_ids=_eos_token_ids(config.model, text_config, tokenizer),
        vocab_size=model.get_output_embeddings().weight.shape[0],
        max_model_len=_max_model_len(config.max_model_len, text_config),
        dtype=dtype,
        device=device,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no GPU here")
    return torch.device(name)


def _dtype(name: str, model_config: Any, device: torch.device) -> torch.dtype:
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu":
        return torch.float32
    stored = getattr(model_config, "dtype", None) or torch.bfloat16
    return stored if isinstance(stored, torch.dtype) else getattr(torch, stored)


def _max_model_len(configured: int | None, text_config: Any) -> int:
    window = getattr(text_config, "max_position_embeddings", None)
    if window is None:
        if configured is None:
            raise ValueError("max_model_len must be given: the model's config names no max_position_embeddings")
        return configured
    if configured is not None and configured > window:
        raise ValueError(f"max_model_len must be at most the model's window of {window} tokens, got {configured}")
    return configured or window


def _eos_token_ids(model: str, text_config: Any, tokenizer: Any) -> frozenset[int]:
    try:
        declared = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        declared = getattr(text_config, "eos_token_id", None)
    ids = set(declared if isinstance(declared, list) else [declared])
    ids.add(tokenizer.eos_token_id)
    return frozenset(token_id for token_id in ids if token_id is not None)

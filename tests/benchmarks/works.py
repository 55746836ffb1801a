"""What the engines are given to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from tests.benchmarks.peer import Run

Measure = Literal["decode tok/s", "prefill tok/s", "output tok/s", "s", "ms per step"]


@dataclass(frozen=True, slots=True)
class Work:
    """num_requests prompts of prompt_tokens each, the first shared_tokens of them in common; max_tokens out."""

    name: str
    measure: Measure
    num_requests: int
    prompt_tokens: int
    max_tokens: int
    peers: tuple[str, ...]
    shared_tokens: int = 0

    def value(self, run: Run) -> float:
        match self.measure:
            case "decode tok/s":
                return (self.max_tokens - 1) / (run.seconds - run.first_token_seconds)
            case "prefill tok/s":
                return self.num_requests * self.prompt_tokens / run.seconds
            case "output tok/s":
                return self.num_requests * self.max_tokens / run.seconds
            case "s":
                return run.seconds
            case "ms per step":
                if run.decode_step_seconds is None:
                    raise ValueError(f"{self.name}: the worker reported no decode steps")
                return run.decode_step_seconds * 1e3

    def ratio(self, ours: Run, theirs: Run) -> float:
        """Above 1: ours is better."""
        if self.measure in ("s", "ms per step"):
            return self.value(theirs) / self.value(ours)
        return self.value(ours) / self.value(theirs)


WORKS: tuple[Work, ...] = (
    Work(
        "decode_1", "decode tok/s", 1, 128, 64,
        ("transformers_cb", "transformers_generate", "vllm_cpu", "llama_cpp", "float32_weights",
         "deterministic", "deterministic_without_kernels"),
    ),
    Work(
        "prefill_1024", "prefill tok/s", 1, 1024, 1,
        ("linears", "linears_and_attention", "transformers_generate", "vllm_cpu", "llama_cpp",
         "deterministic", "deterministic_without_kernels"),
    ),
    Work(
        "batch_16", "output tok/s", 16, 256, 64,
        ("transformers_cb", "transformers_generate", "vllm_cpu", "llama_cpp"),
    ),
    Work("shared_prefix_16", "s", 16, 800, 16, ("cache_off", "vllm_cpu"), shared_tokens=768),
    Work("decode_batch_8", "ms per step", 8, 1024, 16, ("transformers_forward",)),
)  # fmt: skip


class Prompts:
    """Real text as token ids: this project's licence over and over, each prompt from another place on."""

    def __init__(self, model: Path):
        text = (Path(__file__).parents[2] / "LICENSE").read_text()
        self._ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids

    def of(self, work: Work, pair: int) -> list[list[int]]:
        """Different in every pair, so that no engine meets a prompt that it still has in a cache."""
        shared = self._slice(997 * pair, work.shared_tokens)
        own = work.prompt_tokens - work.shared_tokens
        return [shared + self._slice(997 * pair + 131 * (i + 1), own) for i in range(work.num_requests)]

    def _slice(self, start: int, length: int) -> list[int]:
        ids: Sequence[int] = self._ids
        return [ids[(start + i) % len(ids)] for i in range(length)]

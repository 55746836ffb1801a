"""How long a step of an engine takes: what stands for the forward pass in a simulation."""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from replica.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes.

    prefill_pairs: (token, earlier token) pairs that the prefilled tokens attend to. decode_context: tokens that the
    decoding requests attend to, summed.
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    num_decodes: int = 0
    decode_context: int = 0

    @classmethod
    def of(cls, plan: StepPlan) -> "StepWork":
        tokens = pairs = decodes = context = 0
        for item in plan.scheduled:
            if item.num_tokens == 1 and item.samples:
                decodes += 1
                context += item.start + 1
            else:
                tokens += item.num_tokens
                pairs += item.num_tokens * item.start + item.num_tokens * (item.num_tokens + 1) // 2
        return cls(tokens, pairs, decodes, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a step, linear in its work:

        step + prefill_token * tokens + prefill_pair * pairs + decode_request * requests + decode_context * tokens

    origin: where the numbers come from; printed with every result. Raises ValueError for a negative number, and where
    neither a prefilled token nor a decoding request costs anything.
    """

    origin: str
    step_seconds: float
    prefill_token_seconds: float
    prefill_pair_seconds: float = 0.0
    decode_request_seconds: float
    decode_context_seconds: float = 0.0
    kv_bytes_per_token: float = 46_080.0
    """Of a page's K and V, for what moving it costs. The default is SmolLM2-135M in float32."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "origin" and not (math.isfinite(value) and value >= 0.0):
                raise ValueError(f"{name} must be finite and at least 0, got {value}")
        if not self.prefill_token_seconds or not self.step_seconds + self.decode_request_seconds:
            raise ValueError("prefill and decode must cost something")

    def seconds(self, work: StepWork) -> float:
        return (
            self.step_seconds
            + self.prefill_token_seconds * work.prefill_tokens
            + self.prefill_pair_seconds * work.prefill_pairs
            + self.decode_request_seconds * work.num_decodes
            + self.decode_context_seconds * work.decode_context
        )

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "CostModel":
        """Raises ValueError for a file that `write` did not write."""
        try:
            values = json.loads(path.read_text(encoding="utf-8-sig"))
            unknown = set(values) - {field.name for field in fields(cls)}
            if unknown:
                raise ValueError(f"unknown fields {sorted(unknown)}")
            return cls(**values)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is no cost model: {error}") from error


DEFAULT_COST_MODEL = CostModel(
    origin="SmolLM2-135M in float32 on two cores of a server CPU (AVX2): 400 tokens/s of prefill at 1,024 tokens, "
    "66 ms to decode one request, 177 ms for eight at 1,024 tokens of context",
    step_seconds=0.050,
    prefill_token_seconds=2.1e-3,
    prefill_pair_seconds=6.0e-7,
    decode_request_seconds=0.010,
    decode_context_seconds=5.0e-6,
)

"""Fits the cost model to a real engine."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from rich.console import Console

from cluster.lab.cost_model import CostModel, StepWork
from cluster.lab.progress import RequestProgress, request_progress
from cluster.lab.scenario import lab_hasher
from replica.config import EngineConfig
from replica.engine.engine import Engine
from replica.engine.load import MeasuredSpeed
from replica.factory import build_engine
from replica.messages import GenerateRequest
from replica.plan import StepPlan
from replica.sampling_params import SamplingParams

MAX_CONTEXT = 2048
BATCHES = (1, 2, 4, 8, 16)
CONTEXTS = (32, 256, 1024)
PROMPTS = (16, 64, 128, 256, 512, 1024, 1536)
DECODE_STEPS = 6
ROUNDS = 2


class RecordingSpeed(MeasuredSpeed):
    """An engine's step cost that also keeps each step's work and seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[StepWork, float]] = []

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self.steps.append((StepWork.of(plan), seconds))
        super().observe(plan, seconds)


@dataclass(frozen=True, slots=True)
class Fit:
    """median_error: of the fitted against the measured steps, as a share."""

    cost_model: CostModel
    num_steps: int
    median_error: float


def fit_cost_model(model_dir: str, device: str, dtype: str, threads: int | None, console: Console) -> Fit:
    """Runs prompts of several lengths and decode batches at several contexts; a minute or two on a CPU.

    Raises what `build_engine` raises.
    """
    config = EngineConfig(
        model=model_dir, device=device, dtype=dtype, threads=threads, max_model_len=MAX_CONTEXT,
        num_blocks=max(BATCHES) * MAX_CONTEXT // 16, prefix_caching=False,
    )  # fmt: skip
    engine = build_engine(config, lab_hasher(config.block_size))
    batches = [(1, length, 1) for length in PROMPTS] + [
        (batch, context, DECODE_STEPS) for batch in BATCHES for context in CONTEXTS
    ]
    with request_progress(console, ROUNDS * sum(batch for batch, _, _ in batches)) as progress:
        steps = measure_steps(engine, batches * ROUNDS, progress)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() and device != "cpu" else platform.machine()
    origin = f"fitted to {model_dir.rstrip('/').rpartition('/')[2]} on {name}, {torch.get_num_threads()} threads"
    return fit_steps(steps, origin)


def measure_steps(
    engine: Engine, batches: Sequence[tuple[int, int, int]], progress: RequestProgress | None = None
) -> list[tuple[StepWork, float]]:
    """batches: (requests at once, tokens of each prompt, tokens of each answer). The engine must be idle."""
    recorder = RecordingSpeed()
    engine.books.speed = recorder
    rng = Random(0)
    _play(engine, rng, 1, 64, 2)  # the first steps of a process are slower than all others
    recorder.steps.clear()
    for batch, length, new_tokens in batches:
        if progress is not None:
            progress.begin(f"{batch} x {length} tokens")
        _play(engine, rng, batch, length, new_tokens)
        if progress is not None:
            progress.advance(batch)
    return recorder.steps


def _play(engine: Engine, rng: Random, batch: int, length: int, new_tokens: int) -> None:
    """The prompts are random and share nothing; their answers are as long as asked, whatever the model says."""
    for number in range(batch):
        token_ids = rng.choices(range(engine.vocab_size), k=length)
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        engine.add(GenerateRequest(f"{rng.random()}-{number}", token_ids, sampling, 0.0))
    while engine.has_work:
        engine.step()


def fit_steps(steps: Sequence[tuple[StepWork, float]], origin: str) -> Fit:
    """Least squares of the relative errors; a cost that comes out negative is taken for 0 and the rest fitted again."""
    work = np.array(
        [
            [1, w.prefill_tokens, w.prefill_pairs, w.num_decodes, w.decode_context]
            for w, _ in steps
        ],
        dtype=float,
    )  # fmt: skip
    seconds = np.array([measured for _, measured in steps])
    used = [column for column in range(work.shape[1]) if work[:, column].any()]
    while True:
        solution, *_ = np.linalg.lstsq(work[:, used] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (solution >= 0.0).all():
            break
        del used[int(np.argmin(solution * np.abs(work[:, used]).mean(axis=0)))]
    costs = np.zeros(work.shape[1])
    costs[used] = solution
    errors = np.abs(work @ costs / seconds - 1.0)
    step, token, pair, request, context = map(float, costs)
    model = CostModel(
        origin=origin,
        step_seconds=step,
        prefill_token_seconds=token,
        prefill_pair_seconds=pair,
        decode_request_seconds=request,
        decode_context_seconds=context,
    )
    return Fit(model, len(steps), float(np.median(errors)))

"""Costs of steps: counted from plans, fitted, written and read."""

from pathlib import Path
from random import Random

import pytest

from cluster.lab.cost_fit import fit_steps, measure_steps
from cluster.lab.cost_model import DEFAULT_COST_MODEL, CostModel, StepWork
from cluster.lab.step_clock import StepClock
from replica.messages import GenerateRequest
from replica.plan import StepPlan
from replica.request import Request
from replica.sampling_params import SamplingParams
from tests.cluster.lab.workloads import COSTS
from tests.replica.tiny_models import tiny_engine


def request_of(num_tokens: int, num_computed: int) -> Request:
    message = GenerateRequest("r", list(range(num_tokens)), SamplingParams(max_tokens=5), 0.0)
    request = Request(message, num_tokens + 5, [])
    request.num_computed_tokens = num_computed
    return request


def test_the_work_of_a_plan_is_counted_by_kind() -> None:
    plan = StepPlan()
    plan.add(request_of(50, 49), 1)  # a decode
    plan.add(request_of(100, 10), 20)  # a chunk in the middle
    assert StepWork.of(plan) == StepWork(
        prefill_tokens=20, prefill_pairs=sum(range(11, 31)), num_decodes=1, decode_context=50
    )


def test_a_fit_finds_the_costs_that_made_the_steps() -> None:
    rng = Random(1)
    truth = DEFAULT_COST_MODEL
    works = [StepWork(n, n * (n + 1) // 2, 0, 0) for n in (16, 64, 256, 512) for _ in range(5)]
    works += [StepWork(0, 0, batch, batch * context) for batch in (1, 4, 16) for context in (32, 512) for _ in range(5)]
    fit = fit_steps([(work, truth.seconds(work) * rng.uniform(0.98, 1.02)) for work in works], "test")
    assert fit.median_error < 0.03
    for work in works:
        assert fit.cost_model.seconds(work) == pytest.approx(truth.seconds(work), rel=0.1)


def test_a_real_engine_is_measured_step_by_step() -> None:
    steps = measure_steps(tiny_engine(num_blocks=64), [(1, 48, 1), (3, 20, 4)])
    works = [work for work, _ in steps]
    assert works[0] == StepWork(prefill_tokens=48, prefill_pairs=48 * 49 // 2)
    assert sum(work.prefill_tokens for work in works) == 48 + 3 * 20
    assert works[-1] == StepWork(num_decodes=3, decode_context=3 * 23)
    assert all(seconds > 0.0 for _, seconds in steps)
    # Not fitted to its own seconds: five steps of a tiny model are mostly noise.
    assert fit_steps([(work, DEFAULT_COST_MODEL.seconds(work)) for work in works], "tiny").num_steps == len(steps)


def test_a_cost_that_would_be_negative_is_left_out() -> None:
    works = [StepWork(n, n * n, 0, 0) for n in (10, 100, 400)] + [StepWork(0, 0, n, 0) for n in (1, 2, 3)]
    seconds = [0.1 * n for n in (10, 100, 400)] + [1.0, 0.9, 0.8]
    fit = fit_steps(list(zip(works, seconds, strict=True)), "test")
    assert fit.cost_model.decode_request_seconds >= 0.0


def test_a_model_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    COSTS.write(path)
    assert CostModel.read(path) == COSTS
    path.write_text('{"origin": "x", "speed": 1}')
    with pytest.raises(ValueError, match="is no cost model: unknown fields"):
        CostModel.read(path)


def test_noise_belongs_to_the_step_and_has_mean_one() -> None:
    work = StepWork(num_decodes=1)
    clock = StepClock(COSTS, Random(1), noise=0.2)
    all_steps = [clock.seconds(work, step) for step in range(4000)]
    again = StepClock(COSTS, Random(1), noise=0.2)
    assert again.decode_seconds(work, 7, 3)[0] == all_steps[7]
    assert sum(all_steps) / len(all_steps) == pytest.approx(COSTS.seconds(work), rel=0.02)
    spread = [value / COSTS.seconds(work) for value in all_steps]
    assert 0.19 < (sum((value - 1) ** 2 for value in spread) / len(spread)) ** 0.5 < 0.21


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_seconds": -1.0}, "step_seconds must be finite and at least 0"),
        ({"prefill_token_seconds": 0.0}, "prefill and decode must cost something"),
    ],
)
def test_costs_that_make_no_sense_are_refused(change: dict, message: str) -> None:
    values = {"origin": "", "step_seconds": 0.1, "prefill_token_seconds": 0.1, "decode_request_seconds": 0.1}
    with pytest.raises(ValueError, match=message):
        CostModel(**values | change)

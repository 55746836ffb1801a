"""Runs policies over a scenario and sums up what each of them did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cluster.lab.fleet import Fleet, FleetResult, RequestOutcome
from cluster.lab.scenario import Scenario, lab_hasher
from cluster.lab.statistics import percentile

PERCENTS = (50, 95, 99)


@dataclass(frozen=True)
class ArmRuns:
    """One policy over all seeds of a scenario. runs: in the order of the seeds."""

    policy: str
    weights: Mapping[str, float]
    scenario: Scenario
    runs: Sequence[FleetResult]

    @cached_property
    def outcomes(self) -> list[RequestOutcome]:
        """Of all seeds, seed after seed; the n-th of two arms is the same request."""
        return [outcome for run in self.runs for outcome in run.outcomes]

    @property
    def prompt_tokens(self) -> int:
        return sum(outcome.num_prompt_tokens for outcome in self.outcomes)

    @property
    def hit_tokens(self) -> int:
        return sum(outcome.hit_tokens for outcome in self.outcomes)

    @property
    def prefill_saved_seconds(self) -> float:
        """By the cost model, attention left out."""
        return self.hit_tokens * self.scenario.cost_model.prefill_token_seconds

    @property
    def busiest_over_mean(self) -> float:
        """Of computed prefill tokens; the mean over the seeds."""
        ratios = [
            max(run.computed_tokens) * len(run.computed_tokens) / max(1, sum(run.computed_tokens)) for run in self.runs
        ]
        return sum(ratios) / len(ratios)

    def percentile(self, field: str, percent: float) -> float:
        """field: ttft_seconds, total_seconds or queue_seconds."""
        return percentile([getattr(outcome, field) for outcome in self.outcomes], percent)

    def summary(self) -> dict[str, float]:
        values: dict[str, float] = {
            "requests": len(self.outcomes),
            "prompt_tokens": self.prompt_tokens,
            "hit_tokens": self.hit_tokens,
            "hit_share": self.hit_tokens / self.prompt_tokens,
            "prefill_saved_seconds": self.prefill_saved_seconds,
            "computed_prefill_tokens": sum(sum(run.computed_tokens) for run in self.runs),
            "busiest_over_mean": self.busiest_over_mean,
            "preemptions": sum(run.num_preemptions for run in self.runs),
            "index_resyncs": sum(run.num_resyncs for run in self.runs),
        }
        for name in ("ttft", "total", "queue"):
            for percent in PERCENTS:
                values[f"{name}_p{percent}"] = self.percentile(f"{name}_seconds", percent)
        return values


def run_arm(
    scenario: Scenario,
    policy: str,
    weights: Mapping[str, float],
    seeds: Sequence[int],
    on_done: Callable[[], None] | None = None,
) -> ArmRuns:
    """on_done: called for each finished request. Raises ValueError for an unknown policy or weight."""
    hasher = lab_hasher(scenario.config.block_size)
    runs = []
    for seed in seeds:
        fleet = Fleet(scenario.config, scenario.cost_model, hasher, policy, weights, seed)
        trace = scenario.trace_of(seed)
        runs.append(fleet.run(trace, scenario.plan(trace, seed), on_done))
    return ArmRuns(policy, dict(weights), scenario, runs)

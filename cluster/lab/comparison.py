"""Arms beside each other, and how sure the differences are."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cluster.lab.arm_runs import ArmRuns
from cluster.lab.scenario import Scenario
from cluster.lab.statistics import Interval, paired_difference

NOISE = 0.05
"""Differences below this share of the better value are called noise whatever the interval says."""


@dataclass(frozen=True)
class Comparison:
    """arms: at least one, all over the same scenario and seeds. Raises ValueError for none."""

    scenario: Scenario
    arms: Sequence[ArmRuns]
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        if not self.arms:
            raise ValueError("a comparison needs at least one policy")

    @property
    def first(self) -> ArmRuns:
        """The arm with the lowest TTFT p99."""
        return min(self.arms, key=lambda arm: arm.percentile("ttft_seconds", 99))

    def behind_first(self, arm: ArmRuns, percent: float = 99) -> Interval:
        """How many seconds the arm's TTFT percentile lies behind that of the first arm."""
        ours = [outcome.ttft_seconds for outcome in arm.outcomes]
        return paired_difference(ours, [outcome.ttft_seconds for outcome in self.first.outcomes], percent)

    def within_noise(self, arm: ArmRuns) -> bool:
        """Whether the arm is first, or its distance from the first may be chance or is small."""
        distance = self.behind_first(arm)
        return distance.holds_zero or distance.value <= NOISE * self.first.percentile("ttft_seconds", 99)

    def beaten_by(self, arm: ArmRuns) -> list[str]:
        """Policies that are better in both TTFT p99 and hit tokens, each by more than noise and in every reading."""
        ours_p99 = arm.percentile("ttft_seconds", 99)
        return [
            other.policy
            for other in self.arms
            if other is not arm
            and other.percentile("ttft_seconds", 99) < ours_p99
            and other.hit_tokens > arm.hit_tokens
            and not self._same(arm, other)
        ]

    def _same(self, one: ArmRuns, other: ArmRuns) -> bool:
        times = paired_difference(
            [outcome.ttft_seconds for outcome in one.outcomes], [outcome.ttft_seconds for outcome in other.outcomes], 99
        )
        hits = paired_difference(
            [float(outcome.hit_tokens) for outcome in one.outcomes],
            [float(outcome.hit_tokens) for outcome in other.outcomes],
            None,
        )
        return times.holds_zero or hits.holds_zero

    def to_dict(self) -> dict[str, object]:
        """For JSON. Rounded, so that two runs compare equal as text whatever printed them."""
        return {
            "scenario": describe(self.scenario),
            "seeds": list(self.seeds),
            "policies": {arm.policy: self._arm(arm) for arm in self.arms},
        }

    def _arm(self, arm: ArmRuns) -> dict[str, object]:
        summary: dict[str, object] = {name: round(value, 6) for name, value in arm.summary().items()}
        summary["weights"] = dict(arm.weights)
        summary["ttft_p99_behind_first"] = {k: round(v, 6) for k, v in asdict(self.behind_first(arm)).items()}
        return summary


def describe(scenario: Scenario) -> dict[str, object]:
    """What was simulated, for reports."""
    trace = scenario.trace
    described: Mapping[str, object] = {
        "label": scenario.label,
        "trace": trace.name,
        "origin": trace.origin,
        "requests": len(trace.requests),
        "mean_prompt_tokens": round(trace.num_prompt_tokens / len(trace.requests), 1),
        "longest_request_tokens": trace.longest_tokens,
        "requests_per_second": round(scenario.rate, 6) if scenario.rate is not None else None,
        "load": scenario.load,
        "arrivals": scenario.arrivals,
        "concurrency": scenario.concurrency if scenario.rate is None else None,
        "users": scenario.num_users if scenario.rate is None else None,
        "oracle_hit_share": round(scenario.oracle_hit_tokens / trace.num_prompt_tokens, 6) if scenario.load else None,
        "cache_share": round(scenario.cache.share, 4),
        "cache_at_floor": scenario.cache.at_floor,
        "fleet": asdict(scenario.config),
        "cost_model": asdict(scenario.cost_model),
    }
    return {name: value for name, value in described.items() if value is not None}

"""What one arm of a comparison did, in the cluster's own numbers and by the client's clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.lab.load_client import RequestRecord
from cluster.lab.metrics_snapshot import MetricsSnapshot
from cluster.lab.statistics import percentile


@dataclass(frozen=True, slots=True)
class ArmResult:
    """metrics: what the cluster's counters grew by while the arm ran. records: in the workload's order."""

    policy: str
    records: Sequence[RequestRecord]
    metrics: MetricsSnapshot
    wall_seconds: float

    @property
    def completed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is None]

    @property
    def prompt_tokens(self) -> int:
        return int(self.metrics.total("warmlane_prompt_tokens_total"))

    @property
    def hit_tokens(self) -> int:
        return int(self.metrics.total("warmlane_hit_tokens_total"))

    @property
    def saved_tokens(self) -> int:
        return int(self.metrics.total("warmlane_prefill_saved_tokens_total"))

    @property
    def saved_seconds(self) -> float:
        return self.metrics.total("warmlane_prefill_saved_seconds_total")

    @property
    def requests_per_replica(self) -> list[int]:
        """Requests that each replica finished, busiest first."""
        by_replica = self.metrics.by_label("warmlane_requests_total", "replica")
        return sorted((int(count) for replica, count in by_replica.items() if replica), reverse=True)

    def ttft(self, percent: float) -> float:
        """Seconds from sending to the first text, at the client."""
        return percentile([r.ttft_seconds for r in self.completed if r.ttft_seconds is not None], percent)

    def latency(self, percent: float) -> float:
        """Seconds from sending to the end of the answer, at the client."""
        return percentile([record.total_seconds for record in self.completed], percent)


def differences_in_work(one: ArmResult, other: ArmResult) -> list[str]:
    """Why two arms cannot be compared; empty when both did equal work and the cluster counted what the client saw."""
    problems = []
    for arm in (one, other):
        errors = [record.error for record in arm.records if record.error is not None]
        if errors:
            problems.append(
                f"{arm.policy}: {len(errors)} of {len(arm.records)} requests failed, the first with: {errors[0]}"
            )
        seen = sum(record.prompt_tokens for record in arm.completed)
        if not errors and seen != arm.prompt_tokens:
            problems.append(f"{arm.policy}: answers name {seen} prompt tokens, /metrics {arm.prompt_tokens}")
    if len(one.completed) != len(other.completed):
        problems.append(f"completed requests: {len(one.completed)} and {len(other.completed)}")
    if one.prompt_tokens != other.prompt_tokens:
        problems.append(f"prompt tokens: {one.prompt_tokens} and {other.prompt_tokens}")
    completion = [sum(record.completion_tokens for record in arm.completed) for arm in (one, other)]
    if completion[0] != completion[1]:
        problems.append(f"generated tokens: {completion[0]} and {completion[1]}")
    return problems

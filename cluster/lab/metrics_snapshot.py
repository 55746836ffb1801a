"""One reading of a cluster's `/metrics`, and the difference of two."""

from collections import defaultdict
from collections.abc import Callable

import httpx
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class MetricsSnapshot:
    """Samples by name and labels, `_bucket`, `_sum` and `_count` being names of their own.

    Nothing is aggregated on reading: a series keeps its `process`, so that a process that died between two readings
    subtracts nothing (its series is absent from the later one and is left out of `delta`).
    """

    def __init__(self, text: str) -> None:
        self.samples: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.samples[sample.name][tuple(sorted(sample.labels.items()))] = sample.value

    @classmethod
    async def read(cls, client: httpx.AsyncClient, base_url: str) -> "MetricsSnapshot":
        response = await client.get(f"{base_url}/metrics")
        response.raise_for_status()
        return cls(response.text)

    def total(self, name: str, **labels: str) -> float:
        """Sum over the series of `name` that carry these labels; 0 when there is none."""
        return sum(self.by_series(name, **labels).values())

    def by_series(self, name: str, **labels: str) -> dict[Labels, float]:
        some_labels = set(labels.items())
        return {series: value for series, value in self.samples.get(name, {}).items() if some_labels <= set(series)}

    def by_label(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Sums of `name` for each value of one label; series without the label count under ''."""
        return _grouped(self.by_series(name, **labels), lambda series: dict(series).get(label, ""))

    def since(self, earlier: "MetricsSnapshot") -> "MetricsSnapshot":
        """What the counters and buckets grew by. A series that did not exist earlier counts from zero."""
        grown = MetricsSnapshot("")
        for name, series in self.samples.items():
            before = earlier.samples.get(name, {})
            grown.samples[name] = {labels: value - before.get(labels, 0.0) for labels, value in series.items()}
        return grown


def _grouped(series: dict[Labels, float], key: Callable[[Labels], str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for labels, value in series.items():
        sums[key(labels)] += value
    return dict(sums)

"""Joins the metrics of many processes into one page, series by series; nothing is added up."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

SCRAPE_FAILED = "warmlane_scrape_failed"


class MergedMetrics(Collector):
    """The series of all pages, each family once (HELP and TYPE once), each series once.

    Every series carries its `process`, so two pages have no series in common unless they come from one process that
    was asked twice; then the first page counts.
    """

    def __init__(self, pages: Iterable[str], failed_processes: Iterable[str] = ()):
        """pages: in Prometheus's text format. Raises ValueError for a page that is not.

        failed_processes: those whose page could not be read in time; they become series of `warmlane_scrape_failed`.
        """
        self._families: dict[str, Metric] = {}
        seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
        for page in pages:
            for family in text_string_to_metric_families(page):
                merged = self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    series = (sample.name, frozenset(sample.labels.items()))
                    if series not in seen:
                        seen.add(series)
                        merged.samples.append(sample)
        self._failed = sorted(set(failed_processes))

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
        text = "Processes whose metrics could not be read in time"
        failures = GaugeMetricFamily(SCRAPE_FAILED, text, labels=("process",))
        for process in self._failed:
            failures.add_metric((process,), 1)
        yield failures

    def encode(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type. accept: the scraper's Accept header."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        encoder: Callable[[CollectorRegistry], bytes]
        encoder, content_type = choose_encoder(accept)
        return encoder(registry), content_type


def process_of(page: str) -> str | None:
    """The process that a page comes from: the `process` label of its first series that has one."""
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            process = sample.labels.get("process")
            if process:
                return process
    return None


def merge(pages: Iterable[str], failed_processes: Iterable[str] = (), accept: str = "") -> tuple[bytes, str]:
    return MergedMetrics(pages, failed_processes).encode(accept)

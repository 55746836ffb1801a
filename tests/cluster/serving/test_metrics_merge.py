"""One page from many: exact names, no sums, HELP and TYPE once, and silence made visible."""

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from cluster.serving.cluster_scrape import ClusterScrape
from cluster.serving.metrics_merge import merge, process_of
from tests.waiting import eventually

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def registry_of(process: str, hits: int = 3) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("warmlane_hit_tokens", "Hits", ("process",), registry=registry).labels(process).inc(hits)
    Gauge("warmlane_running_requests", "Running", ("process",), registry=registry).labels(process).set(1)
    Histogram("warmlane_ttft_seconds", "TTFT", ("process",), registry=registry, buckets=(1.0,)).labels(process).observe(
        2
    )
    return registry


def page_of(process: str, hits: int = 3) -> str:
    return page_from(registry_of(process, hits))


def page_from(registry: CollectorRegistry) -> str:
    """Without `_created`, as our processes write it."""
    text = generate_latest(registry).decode()
    return "".join(line for line in text.splitlines(keepends=True) if "_created" not in line)


def samples(page: bytes, name: str) -> dict[str, float]:
    """Value by process."""
    families = text_string_to_metric_families(page.decode())
    return {s.labels.get("process", ""): s.value for f in families for s in f.samples if s.name == name}


def test_series_stand_side_by_side_under_their_exact_names() -> None:
    page, content_type = merge([page_of("a", 3), page_of("b", 5)])
    assert content_type.startswith("text/plain")
    assert samples(page, "warmlane_hit_tokens_total") == {"a": 3, "b": 5}
    assert samples(page, "warmlane_running_requests") == {"a": 1, "b": 1}
    assert samples(page, "warmlane_ttft_seconds_count") == {"a": 1, "b": 1}
    assert samples(page, "warmlane_ttft_seconds_sum") == {"a": 2, "b": 2}


def test_help_and_type_stand_once() -> None:
    text = merge([page_of("a"), page_of("b")])[0].decode()
    for name in ("warmlane_hit_tokens_total", "warmlane_running_requests", "warmlane_ttft_seconds"):
        assert text.count(f"# HELP {name} ") == 1
        assert text.count(f"# TYPE {name} ") == 1


def test_a_page_of_one_process_comes_out_as_it_was() -> None:
    page = page_of("a")
    merged = merge([page])[0].decode()
    assert set(page.splitlines()) <= set(merged.splitlines())


def test_a_process_that_was_asked_twice_counts_once() -> None:
    page, _ = merge([page_of("a", 3), page_of("a", 4)])
    assert samples(page, "warmlane_hit_tokens_total") == {"a": 3}
    assert page.decode().count("warmlane_hit_tokens_total{") == 1


def test_a_process_that_could_not_be_read_is_a_metric() -> None:
    page, _ = merge([page_of("a")], failed_processes=["b", "b"])
    assert samples(page, "warmlane_scrape_failed") == {"b": 1}
    assert samples(merge([page_of("a")])[0], "warmlane_scrape_failed") == {}


def test_openmetrics_for_a_scraper_that_asks_for_it() -> None:
    page, content_type = merge([page_of("a")], accept=OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    assert b'warmlane_hit_tokens_total{process="a"} 3.0' in page


def test_both_formats_say_what_prometheus_client_itself_would() -> None:
    """The text is not parsed on the way, so what comes out is compared with what its own encoders write."""
    registry = registry_of("a")
    Counter("warmlane_quoted", 'Says "so" \\ and\nso', ("process",), registry=registry).labels("a").inc()
    page = page_from(registry)
    for accept, encode, parse in (
        ("", generate_latest, text_string_to_metric_families),
        (OPENMETRICS, openmetrics.generate_latest, openmetrics_families),
    ):
        ours = list(parse(merge([page], accept=accept)[0].decode()))
        theirs = list(parse(encode(registry).decode()))
        wanted = {(f.name, f.type, f.documentation) for f in theirs if not f.name.endswith("_created")}
        assert wanted <= {(f.name, f.type, f.documentation) for f in ours}


def test_label_values_with_quotes_and_newlines_survive() -> None:
    process = 'a"b\\c\nd'
    page, _ = merge([page_of(process)])
    assert samples(page, "warmlane_running_requests") == {process: 1}
    assert process_of(page_of(process)) == process


def test_a_page_that_is_no_page_is_an_error_of_its_process() -> None:
    with pytest.raises(ValueError):
        process_of("warmlane_x{ 3")
    assert process_of("") is None


class Call:
    """One replica's answer: a page, an exception, or None for one that never comes."""

    def __init__(self, answer: Any):
        self._answer = answer
        self.cancelled = False

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> str:
        if self._answer is None:
            await asyncio.Event().wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def cancel(self) -> None:
        self.cancelled = True


class Replicas:
    """A Serve handle whose replicas answer what is written here."""

    def __init__(self, **pages: Any):
        self.pages = pages
        self.calls: dict[str, Call] = {}

    def options(self, method_name: str) -> "Replicas":
        return self

    def remote(self, route_to: str) -> Call:
        self.calls[route_to] = Call(self.pages[route_to])
        return self.calls[route_to]


class Siblings:
    def __init__(self) -> None:
        self.answers: Any = []

    async def __call__(self, timeout_seconds: float) -> list[Any]:
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def scrape_of(replicas: Replicas, siblings: Siblings | None = None) -> ClusterScrape:
    registry = registry_of("ingress-1")
    return ClusterScrape(registry, "ingress-1", replicas, lambda: replicas.pages, siblings or Siblings(), 0.2)


async def test_every_process_is_on_the_page() -> None:
    siblings = Siblings()
    siblings.answers = [page_of("ingress-1", 9), page_of("ingress-2")]
    page, _ = await scrape_of(Replicas(a=page_of("replica-a-1"), b=page_of("replica-b-1")), siblings).page()
    assert samples(page, "warmlane_hit_tokens_total") == {
        "ingress-1": 3, "ingress-2": 3, "replica-a-1": 3, "replica-b-1": 3,
    }  # fmt: skip
    assert samples(page, "warmlane_scrape_failed") == {}


@pytest.mark.parametrize("answer", [None, RuntimeError("died"), "warmlane_x{ 3"], ids=["hangs", "raises", "garbage"])
async def test_one_bad_replica_hides_no_other(answer: Any) -> None:
    replicas = Replicas(a=page_of("replica-a-1"), b=answer)
    page, _ = await scrape_of(replicas).page()
    assert set(samples(page, "warmlane_hit_tokens_total")) == {"ingress-1", "replica-a-1"}
    assert samples(page, "warmlane_scrape_failed") == {"replica-b": 1}
    assert replicas.calls["b"].cancelled or isinstance(answer, str)  # one that has answered is over


async def test_a_replica_that_falls_silent_fails_under_its_own_name_and_a_dead_one_is_forgotten() -> None:
    replicas = Replicas(a=page_of("replica-a-1"), b=page_of("replica-b-1"))
    scrape = scrape_of(replicas)
    await scrape.page()
    replicas.pages["b"] = None
    assert samples((await scrape.page())[0], "warmlane_scrape_failed") == {"replica-b-1": 1}
    del replicas.pages["b"]
    assert samples((await scrape.page())[0], "warmlane_scrape_failed") == {}


async def test_an_ingress_that_falls_silent_fails_and_one_that_is_gone_does_not() -> None:
    siblings = Siblings()
    scrape = scrape_of(Replicas(), siblings)
    siblings.answers = [page_of("ingress-2"), page_of("ingress-3")]
    await scrape.page()
    siblings.answers = TimeoutError()
    assert set(samples((await scrape.page())[0], "warmlane_scrape_failed")) == {"ingress-2", "ingress-3"}
    siblings.answers = [page_of("ingress-2"), RuntimeError("away")]
    assert set(samples((await scrape.page())[0], "warmlane_scrape_failed")) == {"ingress-3"}
    siblings.answers = [page_of("ingress-2")]
    assert samples((await scrape.page())[0], "warmlane_scrape_failed") == {}


async def test_readers_that_come_at_the_same_time_share_one_round_that_begins_after_they_came() -> None:
    """Nobody needs a key for the page, so what it costs must not grow with those who ask."""
    rounds, gate = 0, asyncio.Event()

    async def siblings(timeout_seconds: float) -> list[Any]:
        nonlocal rounds
        rounds += 1
        await gate.wait()
        return []

    replicas = Replicas()
    scrape = ClusterScrape(registry_of("ingress-1"), "ingress-1", replicas, lambda: replicas.pages, siblings, 5.0)
    first = asyncio.create_task(scrape.page())
    await eventually(lambda: rounds == 1)
    later = [asyncio.create_task(scrape.page()) for _ in range(50)]
    later[0].cancel()  # a reader that leaves takes nobody with it
    gate.set()
    pages = await asyncio.gather(first, *later[1:])
    assert rounds == 2
    assert len({page for page, _ in pages}) == 1

"""Joins the metrics of many processes into one page, family by family; nothing is added up.

Pages are joined as text: they are our own processes', and reading each sample of a hundred of them would stop every
stream of the ingress for most of a second.
"""

import re
from collections.abc import Iterable
from functools import cached_property

from prometheus_client.exposition import choose_encoder

SCRAPE_FAILED = "warmlane_scrape_failed"
_FAILED_HELP = "Processes whose metrics could not be read in time"
_FAMILY = "# HELP "
_PROCESS = re.compile(r'[{,]process="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


class JoinedPages:
    """The series of all pages, each family once (HELP and TYPE once, as the first page has them).

    Every series carries its `process`, so two pages have no series in common unless they come from one process that
    was asked twice; then the first page counts.
    """

    def __init__(self, pages: Iterable[str], failed_processes: Iterable[str] = ()):
        """pages: as prometheus_client writes them, in Prometheus's text format. Raises ValueError for a page that is
        not so.

        failed_processes: those whose page could not be read in time; they become series of `warmlane_scrape_failed`.
        """
        self._heads: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, list[str]] = {}
        seen: set[str] = set()
        for page in pages:
            process = process_of(page)
            if process is None or process not in seen:
                self._add(page)
                seen.add(process or "")
        self._failed = sorted(set(failed_processes))

    def _add(self, page: str) -> None:
        for family in page.removeprefix(_FAMILY).split("\n" + _FAMILY) if page else ():
            help_line, _, rest = family.partition("\n")
            name, _, text = help_line.partition(" ")
            type_line, _, samples = rest.partition("\n")
            if name not in self._heads:
                self._heads[name] = text, type_line.rpartition(" ")[2]
                self._samples[name] = []
            self._samples[name].append(samples.strip("\n"))

    def encode(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type. accept: the scraper's Accept header."""
        _, content_type = choose_encoder(accept)
        if content_type.startswith("application/openmetrics-text"):
            return self._open_metrics, content_type
        return self._text, content_type

    @cached_property
    def _text(self) -> bytes:
        heads = {name: f"{_FAMILY}{name} {text}\n# TYPE {name} {kind}\n" for name, (text, kind) in self._heads.items()}
        return self._joined(heads).encode()

    @cached_property
    def _open_metrics(self) -> bytes:
        """Its families of counters are named without `_total`, and quotes in a HELP are escaped."""
        heads = {}
        for name, (text, kind) in self._heads.items():
            family = name.removesuffix("_total") if kind == "counter" else name
            kind = "unknown" if kind == "untyped" else kind
            text = text.replace('"', '\\"')
            heads[name] = f"{_FAMILY}{family} {text}\n# TYPE {family} {kind}\n"
        return (self._joined(heads) + "# EOF\n").encode()

    def _joined(self, heads: dict[str, str]) -> str:
        parts = []
        for name, head in heads.items():
            parts.append(head)
            parts += [samples + "\n" for samples in self._samples[name] if samples]
        parts.append(f"{_FAMILY}{SCRAPE_FAILED} {_FAILED_HELP}\n# TYPE {SCRAPE_FAILED} gauge\n")
        parts += [f'{SCRAPE_FAILED}{{process="{_escaped(process)}"}} 1.0\n' for process in self._failed]
        return "".join(parts)


def process_of(page: str) -> str | None:
    """The process that a page comes from: the `process` label of its first series that has one. Raises ValueError for
    what is no page."""
    if page and not (page.startswith(_FAMILY) and page.endswith("\n")):
        raise ValueError(f"this is no page of metrics: {page[:50]!r}")
    found = _PROCESS.search(page)
    return None if found is None else _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], found[1])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def merge(pages: Iterable[str], failed_processes: Iterable[str] = (), accept: str = "") -> tuple[bytes, str]:
    return JoinedPages(pages, failed_processes).encode(accept)

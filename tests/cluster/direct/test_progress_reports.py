"""Replicas tell ingresses what happened in few calls."""

import asyncio

from cluster.direct.progress import Progress, Stage
from cluster.direct.progress_reports import ProgressReports


async def test_what_comes_together_goes_together_and_only_the_last_stage_counts() -> None:
    sent: list[Progress] = []

    async def send(report: Progress) -> None:
        sent.append(report)

    reports = ProgressReports(send, report_seconds=0.0)
    for ticket_id in ("one", "two"):
        reports.note(ticket_id, Stage.BEGUN)
    reports.note("one", Stage.FIRST_TOKEN)
    reports.note("one", Stage.ENDED)
    await reports.flush()
    assert sent == [{"one": Stage.ENDED, "two": Stage.BEGUN}]
    await reports.flush()  # nothing is left, and nothing is sent
    assert len(sent) == 1


async def test_what_comes_while_a_report_is_on_its_way_is_sent_too() -> None:
    sent: list[Progress] = []
    first = asyncio.Event()

    async def send(report: Progress) -> None:
        sent.append(report)
        first.set()
        await asyncio.sleep(0)

    reports = ProgressReports(send, report_seconds=0.0)
    reports.note("one", Stage.BEGUN)
    await first.wait()
    reports.note("one", Stage.ENDED)
    await reports.flush()
    assert sent == [{"one": Stage.BEGUN}, {"one": Stage.ENDED}]


async def test_ingresses_that_cannot_be_told_fail_nothing() -> None:
    failing = True
    sent: list[Progress] = []

    async def send(report: Progress) -> None:
        if failing:
            raise ConnectionError("no ingress")
        sent.append(report)

    reports = ProgressReports(send, report_seconds=0.0)
    reports.note("one", Stage.ENDED)
    await reports.flush()
    failing = False
    reports.note("two", Stage.ENDED)
    await reports.flush()
    assert sent == [{"two": Stage.ENDED}]

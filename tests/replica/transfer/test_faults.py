"""Whatever happens on the way, a pull returns, and every page that it hands on is the source's bit for bit."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from replica.messages import PageAddress
from replica.transfer.page_server import PageServer
from replica.transfer.transfer import PullEnd
from tests.replica.transfer.faulty_wire import Fault, faulty_wire
from tests.replica.transfer.pages import PAGE_BYTES, Taker, keys_of, over_local_socket, over_tcp, pull, pulling, serving
from tests.waiting import BOUND_SECONDS

ROOT = Path(__file__).parents[3]
NUM_PAGES = 6
A_MOMENT = 0.15

faults = st.lists(
    st.builds(
        Fault,
        st.sampled_from(["flip", "drop", "repeat", "insert", "swap", "hold", "hang", "die"]),
        # The handshake has some 130 bytes, each page a few more than it holds.
        st.one_of(st.integers(0, 200), st.integers(0, (NUM_PAGES + 1) * PAGE_BYTES)),
        st.one_of(st.integers(1, 40), st.integers(1, 2 * PAGE_BYTES)),
    ),
    max_size=3,
).map(lambda found: sorted(found, key=lambda fault: fault.at))


@pytest.fixture(scope="module")
def holder() -> Iterator[PageServer]:
    with serving() as server:
        yield server


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@example([Fault("hold", 0), Fault("hold", 40_000)])
@example([Fault("flip", 20_000)])
@example([Fault("swap", 130 + PAGE_BYTES, PAGE_BYTES)])
@example([Fault("drop", 20_000, 1), Fault("insert", 40_000, 1)])
@given(faults)
def test_every_page_is_the_sources(holder: PageServer, faults: list[Fault]) -> None:
    """`pull` compares each page. Twice, because a connection that is kept must not be out of step."""
    harmless = all(fault.kind == "hold" for fault in faults)
    keys = keys_of(NUM_PAGES)
    with faulty_wire(holder.address, faults) as address, pulling() as puller:
        for _ in range(2):
            result = pull(puller, address, keys, seconds=BOUND_SECONDS if harmless else A_MOMENT)
            assert result.end is PullEnd.COMPLETE or not harmless, result


WAYS = pytest.mark.parametrize("way", [over_tcp, over_local_socket], ids=["tcp", "shared memory"])


@WAYS
def test_a_holder_that_is_killed_in_the_middle(way: object) -> None:
    """kill -9, while the next pages are on their way; it hangs before the last ones."""
    command = [sys.executable, "-m", "tests.replica.transfer.holder_process", "20"]
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process,
        pulling() as puller,
    ):
        assert process.stdout is not None
        address = way(PageAddress(**json.loads(process.stdout.readline())))  # type: ignore[operator]
        keys = keys_of(30)

        class Killing(Taker):
            def __call__(self, position: int, blob: memoryview) -> bool:
                if position == 3:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                return super().__call__(position, blob)

        result = pull(puller, address, keys, Killing(keys))
        assert result.end is PullEnd.LOST
        assert 4 <= result.num_pages <= 20
        assert pull(puller, address, keys).end is PullEnd.UNREACHABLE

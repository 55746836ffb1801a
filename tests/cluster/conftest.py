"""A real HAProxy and a folder for it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.haproxy_transport import find_haproxy


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wlc-", dir="/tmp") as path:  # short: sockets end at 97 characters
        yield Path(path)


@pytest.fixture
def binary() -> str:
    found = find_haproxy()
    if found is None:
        pytest.skip("no haproxy runs here")
    return found

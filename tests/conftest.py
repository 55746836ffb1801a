"""Fixtures that more than one package's tests use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.valkey_process import ValkeyProcess


@pytest.fixture
def valkey_process() -> Iterator[ValkeyProcess]:
    """A server of this test alone, not yet started."""
    from tests.valkey_process import ValkeyProcess  # here, because tests/gpu runs where no Redis is installed

    server = ValkeyProcess()
    yield server
    server.close()


@pytest.fixture
def valkey(valkey_process: ValkeyProcess) -> ValkeyProcess:
    """A server of this test alone, running and empty."""
    valkey_process.start()
    return valkey_process

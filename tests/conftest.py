"""Fixtures that more than one package's tests use."""

from collections.abc import Iterator

import pytest

from tests.valkey_process import ValkeyProcess


@pytest.fixture
def valkey_process() -> Iterator[ValkeyProcess]:
    """A server of this test alone, not yet started."""
    server = ValkeyProcess()
    yield server
    server.close()


@pytest.fixture
def valkey(valkey_process: ValkeyProcess) -> ValkeyProcess:
    """A server of this test alone, running and empty."""
    valkey_process.start()
    return valkey_process

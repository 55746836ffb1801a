"""Settings of all tests, and fixtures that more than one package's tests use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.tried_again import reason_to_try_again

if TYPE_CHECKING:
    from tests.valkey_process import ValkeyProcess

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # tests/gpu runs where only pytest and the engine's own libraries are
    pass
else:
    # How long an example takes says how busy the machine is, and nothing about the code.
    settings.register_profile("warmlane", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("warmlane")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason_to_try_again(item.nodeid):
            item.add_marker(pytest.mark.flaky(reruns=1))


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

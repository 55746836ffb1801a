"""A server for the commands that ask a cluster."""

from collections.abc import Iterator

import pytest

from tests.cluster.commands.stub_cluster import StubCluster, stub_cluster


@pytest.fixture
def server() -> Iterator[StubCluster]:
    with stub_cluster() as found:
        yield found

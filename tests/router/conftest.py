"""Fixtures of the tests that need a real server."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.router.world import World
from tests.valkey_process import ValkeyProcess


@pytest.fixture
def world(valkey_process: ValkeyProcess) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(valkey_process, stack)


@pytest.fixture
def up(world: World) -> World:
    world.server.start()
    return world

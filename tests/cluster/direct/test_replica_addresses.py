"""The ingress learns where replicas listen, and forgets those that are gone."""

import asyncio
from collections.abc import Callable
from typing import Any

from cluster.direct.replica_addresses import ReplicaAddresses


class Handle:
    """Stands in for a Serve handle; the first `num_failures` questions fail."""

    def __init__(self, num_failures: int = 0) -> None:
        self.asked: list[str] = []
        self.num_failures = num_failures
        self.hanging: list[asyncio.Future[Any]] = []

    def options(self, method_name: str) -> "Handle":
        assert method_name == "http_address"
        return self

    def remote(self, route_to: str) -> "asyncio.Future[Any]":
        self.asked.append(route_to)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if route_to == "hangs":
            self.hanging.append(future)
        elif len(self.asked) <= self.num_failures:
            future.set_exception(ConnectionError("not yet"))
        else:
            future.set_result(("127.0.0.1", 1000 + len(self.asked)))
        return future


async def eventually(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is polled belongs to other tasks
            await asyncio.sleep(0)


async def test_each_replica_is_asked_once_and_forgotten_when_it_is_gone() -> None:
    handle = Handle()
    addresses = ReplicaAddresses(handle)
    addresses.follow(frozenset({"a"}))
    await eventually(lambda: addresses.known == {"a"})
    addresses.follow(frozenset({"a", "b"}))
    await eventually(lambda: addresses.known == {"a", "b"})
    assert handle.asked == ["a", "b"]
    assert addresses.of("b") == ("127.0.0.1", 1002)
    addresses.follow(frozenset({"b"}))
    assert (addresses.known, addresses.of("a")) == ({"b"}, None)


async def test_a_replica_that_does_not_answer_is_asked_again() -> None:
    handle = Handle(num_failures=2)
    addresses = ReplicaAddresses(handle, retry_seconds=0.0)
    addresses.follow(frozenset({"a"}))
    await eventually(lambda: addresses.known)
    assert handle.asked == ["a"] * 3


async def test_a_replica_that_is_gone_is_not_waited_for() -> None:
    handle = Handle()
    addresses = ReplicaAddresses(handle)
    addresses.follow(frozenset({"hangs"}))
    await eventually(lambda: handle.hanging)
    addresses.follow(frozenset())
    await eventually(lambda: handle.hanging[0].cancelled())
    assert addresses.known == frozenset()

"""Changing the policy while requests are routed, in one router and in all of them."""

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from cache.wire import records as wire
from cache.wire.records import PolicySetting
from router.policies.ray_prefix_affinity import RayPrefixAffinityPolicy
from router.policy_switch import PolicySwitch
from router.prefix_router import PrefixRouter
from tests.router.policies.shapes import idle, prompt, send
from tests.router.routers import KEYS, make_router, request, tokens
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

SOON = time.time_ns() + 10**12
REPLICAS = ("replica-a", "replica-b")
BASE = PolicySwitch("expected_finish", {}).setting.configured


def switch(now_ns: int = 1000) -> PolicySwitch:
    return PolicySwitch("expected_finish", {}, lambda: now_ns)


@pytest.mark.parametrize("change", ["set", "configure", "reconfigure", "adopt"])
def test_what_is_refused_changes_nothing(change: str) -> None:
    one = switch()
    before = (one.policy, one.setting)
    with pytest.raises(ValueError, match="policy lmetric has no weight 'speed'"):
        if change == "adopt":
            one.adopt(PolicySetting(5, "lmetric", (("speed", 1.0),), one.setting.configured))
        else:
            getattr(one, change)("lmetric", {"speed": 1.0})
    assert (one.policy, one.setting) == before


def test_the_last_setting_counts_wherever_it_was_made() -> None:
    one = switch(now_ns=1000)
    base = one.setting.configured
    assert one.set("lmetric", {"count_waiting": 0}) == PolicySetting(1000, "lmetric", (("count_waiting", 0.0),), base)
    assert not one.adopt(PolicySetting(999, "least_tokens", (), base))
    assert not one.adopt(PolicySetting(0, "round_robin", (), base))
    assert (one.policy.name, dict(one.policy.weights)) == ("lmetric", {"count_waiting": 0.0})
    assert one.adopt(PolicySetting(5000, "preble", (), base))
    assert one.policy.name == "preble"
    assert one.set("random", {}).revision == 5001  # this clock is behind the one of that other ingress
    assert one.policy.name == "random"


def test_a_setting_counts_only_over_the_configuration_it_was_made_over() -> None:
    """A new ingress with another configuration is not haunted by what was set before it was deployed."""
    old = switch()
    setting = old.set("lmetric", {})
    same, other = switch(), PolicySwitch("random", {})
    assert same.adopt(setting)
    assert not other.adopt(setting)
    assert other.policy.name == "random"


def test_at_the_start_the_configuration_counts_unless_it_was_overridden() -> None:
    one = switch()
    one.configure("random", {})
    assert (one.policy.name, one.setting.revision) == ("random", 0)
    setting = one.set("lmetric", {})
    late = switch()
    late.configure("random", {})
    assert late.adopt(setting)
    late.configure("random", {})
    assert late.policy.name == "lmetric"
    late.configure("least_tokens", {})
    assert (late.policy.name, late.setting.revision) == ("least_tokens", 0)


def test_a_configuration_that_changes_later_counts_from_then_on() -> None:
    one, two = switch(1000), switch(2000)
    setting = one.set("lmetric", {})
    two.adopt(setting)
    for each in (one, two):
        each.reconfigure("random", {})
        assert each.policy.name == "random"
    assert not one.adopt(setting)
    assert one.adopt(two.setting)  # each has its own revision of the same change
    restarted = switch()
    restarted.configure("random", {})
    assert restarted.adopt(two.set("preble", {}))


def test_two_settings_of_one_nanosecond_end_equal_everywhere() -> None:
    first, second = switch(), switch()
    settings = first.set("lmetric", {}), second.set("preble", {})
    for one in (first, second):
        for setting in settings:
            one.adopt(setting)
    assert first.setting == second.setting == settings[1]


def test_new_weights_keep_what_the_policy_remembers() -> None:
    one = PolicySwitch("ray_prefix_affinity", {})
    send(one.policy, prompt(("system", 10)), idle("a", "b"), to="b")
    before = one.policy
    one.set("ray_prefix_affinity", {"imbalanced_threshold": 10.0})
    assert isinstance(one.policy, RayPrefixAffinityPolicy)
    assert one.policy.sent.num_blocks("b") == 10
    assert (before.weights["imbalanced_threshold"], one.policy.weights["imbalanced_threshold"]) == (1e9, 10.0)
    one.set("ray_prefix_affinity", {})
    assert one.policy.weights["imbalanced_threshold"] == 1e9  # what is not named has its default again
    one.set("random", {})
    one.set("ray_prefix_affinity", {})
    assert isinstance(one.policy, RayPrefixAffinityPolicy)
    assert len(one.policy.sent) == 0


def test_explaining_does_not_teach_the_policy_and_routing_does() -> None:
    router = make_router(replicas=REPLICAS, policy="ray_prefix_affinity")
    tree = router._policy.policy
    assert isinstance(tree, RayPrefixAffinityPolicy)
    chat = tokens("chat", 320)
    router.explain(request(chat))
    assert len(tree.sent) == 0
    decision = router.route(request(chat))
    assert tree.sent.num_blocks(decision.replica_id) == 20
    router.replica_failed(decision.replica_id)
    assert len(tree.sent) == 0


def test_c38_a_policy_that_cannot_remember_does_not_fail_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    router = make_router(replicas=REPLICAS, policy="ray_prefix_affinity", registry=registry)

    def fail(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RayPrefixAffinityPolicy, "on_sent", fail)
    assert router.route(request(tokens("chat", 64))).policy == "ray_prefix_affinity"
    labels = {"model": "m", "process": "ingress-1", "reason": "policy"}
    assert registry.get_sample_value("warmlane_route_fallbacks_total", labels) == 1


def test_a_session_reaches_the_policy() -> None:
    router = make_router(replicas=REPLICAS, policy="session_hash")
    reasons = set()
    for session in (None, "s"):
        shape = request(tokens("chat", 40))
        reasons.add(router.explain(type(shape)("r", shape.token_ids, 8, session_id=session)).reason)
    assert reasons == {"no session: fewest in flight", "hash of the session"}


class Routers:
    def __init__(self, server: ValkeyProcess, stack: ExitStack):
        self.server, self._stack = server, stack

    def add(self, process: str, registry: CollectorRegistry | None = None) -> PrefixRouter:
        router = make_router(self.server.url, REPLICAS, process, registry=registry)
        router.start()
        self._stack.callback(router.stop)
        wait_until(lambda: router._state.last_synced is not None, f"{process} follows Redis")
        return router


@pytest.fixture
def routers(valkey_process: ValkeyProcess) -> Iterator[Routers]:
    with ExitStack() as stack:
        valkey_process.start()
        yield Routers(valkey_process, stack)


def expect(policy: str, *found: PrefixRouter) -> None:
    for router in found:
        wait_until(lambda router=router: router.policy == policy, f"a router has the policy {policy}")


def restarted_empty(routers: Routers) -> None:
    routers.server.kill()
    routers.server.start()


def flushed(routers: Routers) -> None:
    routers.server.client().flushall()


def test_one_setting_reaches_all_routers_and_those_that_come_later(routers: Routers) -> None:
    first, second = routers.add("ingress-1"), routers.add("ingress-2")
    first.set_policy("lmetric", {"count_waiting": 0.0})
    expect("lmetric", second)
    late = routers.add("ingress-3")
    expect("lmetric", late)
    assert late.status()["weights"] == {"count_waiting": 0.0}
    assert {router.policy_setting for router in (first, second, late)} == {first.policy_setting}
    first.stop()
    late.set_policy("preble", {})
    expect("preble", second)


@pytest.mark.parametrize("loss", [flushed, restarted_empty])
def test_a_setting_outlives_the_store_and_its_key_expires_without_routers(
    routers: Routers, loss: Callable[[Routers], None]
) -> None:
    first = routers.add("ingress-1")
    first.set_policy("lmetric", {})
    client = routers.server.client()
    wait_until(lambda: client.get(KEYS.policy) is not None, "the setting is stored")
    loss(routers)
    wait_until(lambda: client.get(KEYS.policy) is not None, "the setting is stored again")
    assert wire.decode_policy(client.get(KEYS.policy)) == first.policy_setting
    assert 0 < client.pttl(KEYS.policy) <= 60_000
    expect("lmetric", routers.add("ingress-2"))


def test_a_configured_policy_is_nobodys_setting(routers: Routers) -> None:
    routers.add("ingress-1")
    second = routers.add("ingress-2")
    second.configure_policy("random", {})
    third = routers.add("ingress-3")
    assert (second.policy, third.policy) == ("random", "expected_finish")
    assert routers.server.client().get(KEYS.policy) is None


@pytest.mark.parametrize(
    "stored",
    [
        b"noise",
        wire.encode_policy(PolicySetting(SOON, "of_tomorrow", (), BASE)),
        wire.encode_policy(PolicySetting(SOON, "lmetric", (("x", 1.0),), BASE)),
        wire.encode_policy(PolicySetting(SOON, "lmetric", (), "over another configuration")),
    ],
    ids=["noise", "an unknown policy", "an unknown weight", "another configuration"],
)
def test_a_setting_that_is_not_understood_is_left_alone(routers: Routers, stored: bytes) -> None:
    registry = CollectorRegistry()
    router = routers.add("ingress-1", registry)
    routers.server.client().set(KEYS.policy, stored)
    before = router._state.last_synced
    wait_until(lambda: router._state.last_synced > before + 0.3, "the router polled on")  # type: ignore[operator]
    assert router.policy == "expected_finish"
    labels = {"model": "m", "process": "ingress-1", "reason": "malformed"}
    dropped = registry.get_sample_value("warmlane_index_dropped_records_total", labels) or 0
    assert dropped == (1 if stored == b"noise" else 0)


def with_revision(revision: int) -> bytes:
    data = wire.encode_policy(PolicySetting(1, "lmetric", (), BASE))
    return data[:3] + struct.pack("<Q", revision) + data[11:]


@pytest.mark.parametrize("revision", [4 * 10**18, 2**63 - 1, 2**63, 2**64 - 1])  # the first is in 2096
def test_a_revision_that_nobody_could_outbid_is_malformed_and_the_next_setting_replaces_it(
    routers: Routers, revision: int
) -> None:
    registry = CollectorRegistry()
    first, second = routers.add("ingress-1", registry), routers.add("ingress-2")
    routers.server.client().set(KEYS.policy, with_revision(revision))
    labels = {"model": "m", "process": "ingress-1", "reason": "malformed"}
    name = "warmlane_index_dropped_records_total"
    wait_until(lambda: registry.get_sample_value(name, labels) == 1, "counted as malformed")
    assert first.policy == "expected_finish"
    first.set_policy("round_robin", {})
    expect("round_robin", second)
    assert first.status()["redis"] == "connected"


def test_an_error_in_agreeing_costs_nothing_else(routers: Routers) -> None:
    """However such a setting came to be in force."""
    router = routers.add("ingress-1")
    assert router.adopt_policy(PolicySetting(2**64, "lmetric", (), BASE))
    before = router._state.last_synced
    wait_until(lambda: router._state.last_synced > before + 0.3, "the router polled on")  # type: ignore[operator]
    assert (router.policy, router.status()["redis"], router.status()["rung"]) == ("lmetric", "connected", "fresh")

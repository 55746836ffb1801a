"""Pages that move in the simulation: between replicas over links, and from their memory."""

from dataclasses import replace

import pytest

from cache.kv_cache_manager import NO_MATCH, KVCacheManager
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import Scenario, lab_hasher
from cluster.lab.simulated_loading import Links, SimulatedLoader
from cluster.lab.trace_files import load_trace
from replica.engine.loads import PageLoad
from replica.messages import PageAddress
from tests.cluster.lab.workloads import COSTS, sessions, simulate

FLEET = FleetConfig(num_replicas=3, num_blocks=160, step_noise=0.2, num_slow_replicas=1)
PULLING = replace(FLEET, pull=True)
HASHER = lab_hasher(16)
TOKENS = list(range(16 * 10))
KEYS = HASHER.keys(TOKENS)


def holding(num_blocks: int) -> KVCacheManager:
    manager = KVCacheManager(32, 16)
    manager.admit("r", NO_MATCH, num_blocks * 16)
    manager.commit("r", KEYS, num_blocks * 16)
    manager.release("r")
    return manager


def test_transfers_over_one_link_follow_each_other_and_others_do_not_wait() -> None:
    links = Links(4, 100.0, 0.5)
    assert links.transfer(0, 1, 200.0, 1.0) == (1.5, 3.5)
    assert links.transfer(0, 2, 100.0, 1.0) == (3.5, 4.5)  # the giver's way out
    assert links.transfer(3, 1, 100.0, 1.0) == (3.5, 4.5)  # the taker's way in
    assert links.transfer(2, 3, 100.0, 1.0) == (1.5, 2.5)


@pytest.mark.parametrize(
    ("now", "num_came", "failure"), [(2.4, 0, "late"), (4.5, 4, "late"), (6.5, 8, "missing"), (9.0, 8, "missing")]
)
def test_pages_come_one_after_another_as_far_as_the_giver_holds_them(now: float, num_came: int, failure: str) -> None:
    moment = [2.0]
    managers = {"a": holding(8), "b": KVCacheManager(32, 16)}
    links = Links(2, 10.0, 0.5)
    loader = SimulatedLoader(1, managers, {"a": 0, "b": 1}, links, managers["b"], 5.0, 1e9, lambda: moment[0])
    loader.start(PageLoad("r", KEYS, list(range(10)), PageAddress("a", "a", 0)))
    moment[0] = now
    assert loader.has_ended("r") == (now >= 6.5)
    came = loader.end("r")
    assert (came.num_pages.get("peer", 0), came.failure) == (num_came, failure)


def test_what_moves_is_hit_and_the_same_seed_gives_the_same_to_the_byte() -> None:
    trace = sessions()
    result = simulate(trace, PULLING)
    assert result.loaded_tokens["peer"] > 0
    assert repr(result) == repr(simulate(trace, PULLING))
    assert [outcome.number for outcome in result.outcomes] == list(range(len(trace.requests)))
    assert sum(o.hit_tokens for o in result.outcomes) >= result.loaded_tokens["peer"]


def test_a_link_without_bandwidth_takes_no_pages() -> None:
    slow = replace(PULLING, link_bytes_per_second=1.0)
    result, without = simulate(sessions(), slow), simulate(sessions(), FLEET)
    assert result.loaded_tokens.get("peer", 0) == 0
    assert sum(result.computed_tokens) < 1.5 * sum(without.computed_tokens)


def test_host_memory_gives_back_what_the_pools_evict() -> None:
    trace = sessions()
    without = simulate(trace, replace(FLEET, num_blocks=60))
    result = simulate(trace, replace(FLEET, num_blocks=60, host_blocks=4000))
    assert result.loaded_tokens["host"] > 0
    assert sum(result.computed_tokens) < sum(without.computed_tokens)


@pytest.mark.parametrize("name", ["documents", "tools", "coding"])
def test_long_beginnings_are_long_and_shared(name: str) -> None:
    trace = load_trace(name, num_requests=60)
    assert trace.requests == load_trace(name, num_requests=60).requests
    beginnings = {tuple(request.prompt_ids[:2000]) for request in trace.requests}
    assert len(beginnings) <= 12
    assert all(len(request.prompt_ids) >= 4000 for request in trace.requests)
    scenario = Scenario.at_load(trace, replace(FLEET, host_share=2.0), COSTS, 0.5, 0.8, raise_share=True)
    assert scenario.config.host_blocks >= 2 * trace.num_unique_blocks(HASHER) // 3

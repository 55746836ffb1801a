"""Several ingresses decide as well as one, and not all alike (C9, C16, C25, C26)."""

import random

import pytest

from tests.router.fleet import prompt
from tests.router.several_routers import SeveralRouters

SECONDS = 200.0


def conversations(num_routers: int, seed: int) -> SeveralRouters:
    """12 groups x 4 users x 4 turns, with thinking in between."""
    fleet = SeveralRouters(num_routers, seed=seed)
    fleet.exchange_until(fleet.now + SECONDS)
    rng = random.Random(seed)
    for session in range(48):
        start_session(fleet, session, rng)
    fleet.run()
    assert sum(fleet.counts()) == 48 * 4
    return fleet


def start_session(fleet: SeveralRouters, session: int, rng: random.Random) -> None:
    history = [(f"system {session % 12}", 600)]

    def turn() -> None:
        if len(history) < 5:
            history.append((f"session {session} turn {len(history)}", 100))
            fleet.send(prompt(*history), new_tokens=16, on_done=lambda: fleet.at(rng.uniform(4.0, 10.0), turn))

    fleet.at(rng.uniform(0.0, 40.0), turn)


def test_c25_four_routers_hit_within_two_percent_of_one() -> None:
    seeds = (1, 2, 3)
    one = sum(conversations(1, seed).hit_rate() for seed in seeds) / len(seeds)
    four = sum(conversations(4, seed).hit_rate() for seed in seeds) / len(seeds)
    assert one > 0.6
    assert four > one - 0.02


def test_c26_eight_routers_hit_as_well_as_one_and_know_what_will_hit() -> None:
    one, eight = conversations(1, 4), conversations(8, 4)
    assert eight.hit_rate() > one.hit_rate() - 0.02
    assert eight.precision() > 0.98
    assert sum(predicted > 0 for predicted, _ in eight.hits) > 48 * 3  # routing by the index is what was tested (C32)


def burst(num_routers: int, seed: int, policy: str = "expected_finish") -> float:
    """Share of the busiest replica, when 160 requests of one warm prompt come within four seconds."""
    fleet = SeveralRouters(num_routers, policy=policy, seed=seed)
    fleet.exchange_until(fleet.now + 20.0)
    fleet.send(prompt(("system", 800)), new_tokens=4)
    for number in range(160):
        chat = prompt(("system", 800), (f"user {number}", 100))
        fleet.at(5.0 + number * 0.025, lambda chat=chat: fleet.send(chat))
    fleet.run()
    return max(fleet.counts()) / sum(fleet.counts())


@pytest.mark.parametrize("num_routers", [1, 4, 8])
def test_c9_no_herd_forms_on_the_one_warm_replica(num_routers: int) -> None:
    assert max(burst(num_routers, seed) for seed in range(3)) < 0.4
    assert burst(num_routers, 1, "longest_prefix") == 1.0  # the herd


def test_c25_siblings_of_a_cold_prefix_stay_together_whichever_router_takes_them() -> None:
    fleet = SeveralRouters(4)
    fleet.exchange_until(fleet.now + 20.0)
    for number in range(8):
        chat = prompt(("cold prefix", 4000), (f"tail {number}", 40))
        fleet.at(number * 0.25, lambda chat=chat: fleet.send(chat))  # computing it takes 10 s
    fleet.run()
    assert sum(engine.computed_tokens for engine in fleet.engines.values()) <= 4000 + 8 * 56


@pytest.mark.parametrize("policy", ["expected_finish", "dynamo_cost", "lmetric", "preble"])
def test_c16_a_hot_prefix_is_copied_to_more_replicas(policy: str) -> None:
    fleet = SeveralRouters(2, policy=policy)
    fleet.exchange_until(fleet.now + 60.0)
    for number in range(150):
        chat = prompt(("hot", 1300), (f"user {number}", 60))
        fleet.at(number * 0.3, lambda chat=chat: fleet.send(chat))
    fleet.run()
    holders = [engine for engine in fleet.engines.values() if engine.hit_tokens]
    assert len(holders) == 4
    assert min(fleet.counts()) >= 15
    assert fleet.hit_rate() > 0.85

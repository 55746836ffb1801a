"""The machine of `test_engine_properties.py` without hypothesis: long lives, in which all places overflow."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.replica.engine.four_places import SHARED
from tests.replica.engine.test_engine_properties import EngineMachine

TAILS = ([], [], [1], [2, 2, 2, 2, 2])
FAULTS = ("die", "garbage", "late", "corrupt", "reorder", "truncate")
OPERATIONS = {"add": 30, "step": 40, "come": 15, "fault": 6, "all": 6, "others": 2, "abort": 3, "spoil": 2}
OPERATIONS |= {"reset": 1, "giver forgets": 0.5}


class Choice:
    """What the machine draws from: see `hypothesis.strategies.data`."""

    def __init__(self, rng: random.Random):
        self._rng = rng

    def draw(self, strategy: Any) -> Any:
        return self._rng.choice(list(strategy.elements))


def do(machine: EngineMachine, operation: str, rng: random.Random) -> None:
    data: Any = Choice(rng)
    match operation:
        case "add":
            salt, stop = rng.choice([None, None, None, "other"]), rng.choice([(), (40, 41, 42, 43)])
            pulled = rng.choice([None, None, 7, 20, 1000])
            shared, tail = rng.choice(SHARED), rng.choice(TAILS)
            copies, knows = rng.choice([1, 1, 1, 2, 3]), rng.random() < 0.5
            machine.add(shared, tail, rng.randint(1, 24), copies, stop, salt, pulled, knows)
        case "step" if machine.live:
            machine.step(rng.randint(1, 12))
        case "come" if machine.loader is not None and machine.loader.loads:
            machine.pages_come(data, rng.choice(["arrive", "whole"]))
        case "fault" if machine.loader is not None and machine.loader.loads:
            machine.pages_come(data, rng.choice(FAULTS))
        case "all":
            machine.everything_comes()
        case "others":
            machine.others_come([rng.randint(0, 3)])
        case "abort" if machine.live:
            machine.abort(data)
        case "spoil" if machine.folder is not None:
            machine.disk_spoils(data, rng.choice(["bytes", "cut", "gone"]))
        case "reset":
            machine.reset_cache()
        case "giver forgets":
            machine.giver_forgets()


def live(seed: int, num_turns: int) -> Counter[str]:
    """Returns the tokens that were loaded, by tier, how many loads failed, how often a request was preempted, and how
    many operations that were: a turn is one, and of its steps each."""
    rng, machine = random.Random(seed), EngineMachine()
    machine.start(
        num_blocks=rng.choice([16, 20, 28]),
        blocks_per_page=rng.choice([1, 1, 2, 4]),
        budget=rng.randint(4, 40),
        caching=True,
        watermark=rng.choice([0.0, 0.1]),
        num_host_pages=rng.choice([0, 2, 10, 60]),
        num_disk_pages=rng.choice([0, 2, 40]),
        has_peer=rng.random() < 0.8,
    )
    try:
        for operation in rng.choices(list(OPERATIONS), list(OPERATIONS.values()), k=num_turns):
            do(machine, operation, rng)
            machine.events_tell_what_can_be_hit()
            machine.tiers_keep_their_bounds()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        machine.teardown()
    counters, done = machine.engine.counters, Counter[str]()
    done.update(counters.num_loaded_tokens)
    done["failed"] = sum(counters.num_failed_loads.values())
    done["preempted"] = machine.engine.scheduler.num_preemptions
    done["operations"] = num_turns + counters.num_steps
    return done


def check(num_operations: int, first_seed: int, num_turns: int) -> None:
    done, seed = Counter[str](), first_seed
    while done["operations"] < num_operations or seed < first_seed + 4:
        done += live(seed, num_turns)
        seed += 1
    for what in ("host", "disk", "peer", "failed", "preempted"):
        assert done[what] >= done["operations"] / 500, f"too little happened: {done}"


def test_two_thousand_operations() -> None:
    check(2000, first_seed=0, num_turns=100)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_operations() -> None:
    check(100_000, first_seed=100, num_turns=500)

"""The default policy against the reported ways in which prefix routing goes wrong, in virtual time."""

import pytest

from tests.router.fleet import HASHER, Fleet, prompt

CPU = {"prefill_rate": 400.0, "step_base": 0.046, "step_slope": 0.02}
GPU = {"prefill_rate": 20_000.0, "step_base": 0.010, "step_slope": 0.0002}


def shared_prompt_chats(fleet: Fleet, gap_seconds: float, count: int = 200) -> Fleet:
    for number in range(count):
        chat = prompt(("system", 1300), (f"user {number}", 60))
        fleet.at(number * gap_seconds, lambda chat=chat: fleet.send(chat))
    fleet.run()
    return fleet


@pytest.mark.parametrize(("speeds", "gap"), [(CPU, 0.8), (CPU, 0.25), (CPU, 0.0), (GPU, 0.1), (GPU, 0.01), (GPU, 0.0)])
def test_23_one_shared_system_prompt_does_not_pile_up(speeds: dict[str, float], gap: float) -> None:
    fleet = shared_prompt_chats(Fleet(4, "expected_finish", **speeds), gap)
    blind = shared_prompt_chats(Fleet(4, "round_robin", **speeds), gap)
    assert fleet.imbalance() <= 1.5
    assert fleet.hit_rate() >= blind.hit_rate() - 1e-9


def test_23_longest_prefix_does_pile_up() -> None:
    """The test above can fail: the naive policy fails it."""
    fleet = shared_prompt_chats(Fleet(4, "longest_prefix", **CPU), 0.8)
    assert fleet.counts().count(0) == 3


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_c6_a_burst_in_one_instant_is_spread_by_reservations_alone(num_replicas: int) -> None:
    fleet = Fleet(num_replicas)
    for number in range(40 * num_replicas):
        fleet.send(prompt((f"unique {number}", 200)))  # no event runs in between: no heartbeat, nothing computed
    assert fleet.counts() == [40] * num_replicas


def test_c2_c3_c10_the_best_holder_within_reach_of_the_load_wins() -> None:
    """Two hold the prefix; the one with work queued is passed over for the other, not for a cold one."""
    fleet = Fleet(4)
    chat = prompt(("long history", 4000))
    holders = ["replica-0", "replica-1"]
    for replica_id in holders:
        keys = tuple(HASHER.keys(chat))
        fleet.engines[replica_id].cached.update(keys)
        fleet._publish(fleet.engines[replica_id], keys)
    fleet.send(chat)
    first = fleet.decisions[-1].replica_id
    fleet.state.reserve("elsewhere", first, 3000, [], fleet.now)
    fleet.send(chat)
    assert [first, fleet.decisions[-1].replica_id] in (holders, holders[::-1])
    assert fleet.decisions[-1].predicted_hit_tokens == 3984
    for number in range(40):  # both holders are far beyond what computing it again costs
        fleet.state.reserve(f"more {number}", holders[number % 2], 3000, [], fleet.now)
    fleet.send(chat)
    assert fleet.decisions[-1].replica_id not in holders
    assert fleet.decisions[-1].reachable_hit_tokens == 3984


@pytest.mark.parametrize("speeds", [CPU, GPU])
def test_c7_paced_sessions_do_not_all_stay_on_one_replica(speeds: dict[str, float]) -> None:
    """Nothing is ever in flight at a decision: only the memory of recent work can spread the sessions."""
    fleet = Fleet(2, **speeds)
    histories = {number: [("system", 1300)] for number in range(8)}

    def turn(session: int, number: int) -> None:
        histories[session].append((f"session {session} turn {number}", 80))
        assert all(engine.in_flight == 0 for engine in fleet.engines.values())
        fleet.send(prompt(*histories[session]), new_tokens=4)

    for number in range(400):
        fleet.at(number * 8.0, lambda number=number: turn(number % 8, number))
    fleet.run()
    assert min(fleet.counts()) >= 0.25 * sum(fleet.counts())
    assert fleet.hit_rate() > 0.85


@pytest.mark.parametrize("speeds", [CPU, GPU])
@pytest.mark.parametrize("think_seconds", [0.0, 5.0])
def test_one_session_alone_never_moves(speeds: dict[str, float], think_seconds: float) -> None:
    fleet = Fleet(4, **speeds)
    history = [("system", 200)]

    def turn() -> None:
        history.append((f"turn {len(history)}", 70))
        if len(history) < 60:
            fleet.send(prompt(*history), on_done=lambda: fleet.at(think_seconds, turn))

    turn()
    fleet.run()
    assert sorted(fleet.counts()) == [0, 0, 0, 58]


@pytest.mark.parametrize("gap", [0.4, 3.0])
def test_c13_a_new_replica_gets_its_share(gap: float) -> None:
    fleet = Fleet(3)
    for number in range(200):
        chat = prompt(("system", 1300), (f"user {number}", 60))
        fleet.at(number * gap, lambda chat=chat: fleet.send(chat))
    fleet.at(100 * gap - 0.01, lambda: added.append(fleet.add_replica()))
    added: list[str] = []
    fleet.run()
    assert fleet.engines[added[0]].num_requests >= 0.6 * 100 / 4
    assert fleet.hit_rate() > 0.8


def test_sessions_keep_their_replica_under_load() -> None:
    """What affinity is for: many sessions with long histories, all replicas busy."""
    fleet, blind = Fleet(4, seed=3), Fleet(4, "round_robin", seed=3)
    for one in (fleet, blind):
        for session in range(24):
            start_session(one, session, turns=6)
        one.run()
    assert fleet.hit_rate() > 0.75
    assert blind.hit_rate() < fleet.hit_rate() - 0.1
    assert fleet.imbalance() <= 1.5


def start_session(fleet: Fleet, session: int, turns: int) -> None:
    history = [(f"system {session % 3}", 400)]

    def turn() -> None:
        history.append((f"session {session} turn {len(history)}", 150))
        if len(history) <= turns + 1:
            fleet.send(prompt(*history), new_tokens=32, on_done=lambda: fleet.at(2.0, turn))

    fleet.at(session * 0.5, turn)

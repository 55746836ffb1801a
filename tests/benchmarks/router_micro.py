"""What the router costs: looking up, deciding, applying events, and memory per key."""

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from cache.block_hasher import BlockHasher
from cache.events import BlocksStored
from cache.wire.records import EventBatch, ReplicaLoad, ReplicaRegistration, decode_events, encode_events
from cluster.lab.arm_runs import run_arm
from cluster.lab.cost_model import DEFAULT_COST_MODEL
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import Scenario
from cluster.lab.trace_files import load_trace
from router.decision import RouteRequest
from router.decision_maker import DecisionMaker
from router.followed_replicas import KEYS_PER_HOLD
from router.index.mirror import IndexMirror
from router.ladder import Rung
from router.policies.registry import DEFAULT_POLICY, make_policy
from router.router_state import RouterState
from tests.benchmarks.dynamo_peer import DynamoTree
from tests.benchmarks.peer_setup import PeerUnavailable

PAIRS = 7
HASHER = BlockHasher(bytes(16), "bench", 16)
Row = dict[str, Any]

QUIET_LOOP_US = 108.0
"""The loop below on a quiet core of the two-core EPYC machine for which the bars were set."""


def calibration() -> float:
    """How many times slower this machine is right now than that one at its quiet speed, for work of about 100 us."""

    def loop() -> None:
        table: dict[int, int] = {}
        for number in range(2000):
            table[number & 1023] = number

    return statistics.median(microseconds(loop, 200)) / QUIET_LOOP_US


def microseconds(function: Callable[..., object], repeat: int, *arguments: object) -> list[float]:
    samples = []
    for _ in range(repeat):
        started = time.perf_counter()
        function(*arguments)
        samples.append((time.perf_counter() - started) * 1e6)
    return samples


def longest_prefix(num_replicas: int, num_blocks: int) -> Row:
    """Both sides in turn, `PAIRS` times: every replica holds the whole prompt, the worst case of our walk."""
    mirror = IndexMirror()
    keys = HASHER.keys(Random(1).choices(range(50_000), k=16 * num_blocks))
    for _ in range(num_replicas):
        slot = mirror.add_slot()
        mirror.store(slot, keys)
        mirror.enliven(slot)
    mirror.predict(0, HASHER.keys(Random(2).choices(range(50_000), k=16 * 64)), 0.0)
    expected = dict.fromkeys(range(num_replicas), num_blocks)
    if mirror.longest_prefix(keys, 1.0) != expected:
        raise RuntimeError("the mirror answers wrongly")
    row: Row = {"work": f"longest_prefix_{num_replicas}x{num_blocks}", "unit": "us"}
    repeat = max(50, 60_000 // num_blocks // 4)
    hashes = [int.from_bytes(key[:7], "little") for key in keys]
    try:
        tree = DynamoTree(num_replicas, hashes)
        if sorted(tree.depths(hashes).values()) != [num_blocks] * num_replicas:
            raise RuntimeError("Dynamo's tree answers wrongly")
    except PeerUnavailable as error:
        row["skipped"] = {"dynamo_radix_tree": str(error)}
        tree = None
    ours, theirs, ratios = [], [], []
    for _ in range(PAIRS):
        mine = microseconds(lambda: mirror.longest_prefix(keys, 1.0), repeat)
        ours.append(mine)
        if tree is not None:
            peer = microseconds(lambda: tree.depths(hashes), repeat)
            theirs.append(peer)
            ratios.append(statistics.median(mine) / statistics.median(peer))
    row["ours"] = _quantiles(ours)
    if tree is not None:
        row["dynamo_radix_tree"] = _quantiles(theirs)
        row["ratio"] = {"dynamo_radix_tree": _spread(ratios)}
    return row


def whole_decision(num_replicas: int = 8, num_blocks: int = 64) -> Row:
    """Hash 64 blocks, look them up, score 8 replicas; each prompt is new behind a shared half."""
    state, rng = RouterState(IndexMirror()), Random(3)
    shared = rng.choices(range(50_000), k=8 * num_blocks)
    names = [f"replica-{number}" for number in range(num_replicas)]
    for number, name in enumerate(names):
        registration = ReplicaRegistration(name, f"{number:032x}", HASHER.canary, 16, 4096, 0.0)
        state.adopt(registration, state.load_slot(HASHER.keys(shared)), 0.0)
        state.on_heartbeat(name, ReplicaLoad(number, 1, 100 * number, 2000, 4096, 400.0, 0.1), 0.0)
    maker = DecisionMaker(HASHER, state, rng, 8192, lambda: None)
    policy = make_policy("expected_finish")
    prompts = [shared + rng.choices(range(50_000), k=8 * num_blocks) for _ in range(200)]

    def decide(prompt: Sequence[int]) -> None:
        maker.decide(RouteRequest("r", prompt, 64), policy, frozenset(names), Rung.FRESH, 1.0)

    rounds = [[microseconds(decide, 1, prompt)[0] for prompt in prompts] for _ in range(PAIRS)]
    return {"work": f"whole_decision_{num_replicas}x{num_blocks}", "unit": "us", "ours": _quantiles(rounds)}


def events_applied(num_batches: int = 400, blocks_per_batch: int = 64) -> Row:
    """From the bytes of the stream to the mirror: blocks per second by the median time of a batch, which other
    processes on the machine do not change; and the longest hold of the lock, which one huge event would take."""
    rng = Random(4)

    def batch_of(seq: int, size: int) -> bytes:
        return encode_events(EventBatch(seq, (BlocksStored(tuple(rng.randbytes(16) for _ in range(size))),)))

    batches = [batch_of(number + 1, blocks_per_batch) for number in range(num_batches)]
    holds = [batch_of(number + 1, KEYS_PER_HOLD) for number in range(40)]
    medians, slices = [], []
    for _ in range(PAIRS):
        state = RouterState(IndexMirror())
        registration = ReplicaRegistration("r", "0" * 32, HASHER.canary, 16, 4096, 0.0)
        state.adopt(registration, state.load_slot(()), 0.0)
        gc.collect()

        def apply(data: bytes) -> None:
            state.apply(registration, decode_events(data).events, 0.0)  # noqa: B023  used in this round only

        medians.append(statistics.median(microseconds(apply, 1, data)[0] for data in batches))
        slices += [microseconds(apply, 1, data)[0] / 1e3 for data in holds]
    rates = sorted(blocks_per_batch * 1e6 / median for median in medians)
    return {
        "work": "events_applied",
        "unit": "blocks/s",
        "ours": {"min": rates[0], "median": statistics.median(rates), "max": rates[-1]},
        "longest_slice_ms": statistics.median(slices),
    }


def bytes_per_key(num_keys: int = 100_000, num_replicas: int = 4) -> Row:
    """Memory of the mirror per different key, the key's own bytes object included; each replica holds a part."""
    rng = Random(5)
    gc.collect()
    tracemalloc.start()
    mirror = IndexMirror()
    slots = [mirror.add_slot() for _ in range(num_replicas)]
    for start in range(0, num_keys, 1000):
        keys = [rng.randbytes(16) for _ in range(1000)]
        mirror.store(slots[start // 1000 % num_replicas], keys)
    del keys
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"work": "bytes_per_key", "unit": "bytes", "ours": used / num_keys}


def simulated_requests() -> Row:
    """Requests per second of the simulator on the Mooncake trace, 4 replicas at 80 %, the default policy."""
    trace = load_trace("mooncake")
    scenario = Scenario.at_load(trace, FleetConfig(num_replicas=4, step_noise=0.2), DEFAULT_COST_MODEL, 0.1, 0.8)
    rates = []
    for seed in (1, 2, 3):
        started = time.perf_counter()
        run_arm(scenario, DEFAULT_POLICY, {}, [seed])
        rates.append(len(trace.requests) / (time.perf_counter() - started))
    return {
        "work": "simulated_requests",
        "unit": "requests/s",
        "ours": {"min": min(rates), "median": statistics.median(rates), "max": max(rates)},
    }


def all_micro_rows() -> list[Row]:
    """Each with how slow the machine was around it."""
    works: list[Callable[[], Row]] = [
        lambda: longest_prefix(8, 64),
        lambda: longest_prefix(64, 2048),
        whole_decision,
        events_applied,
        bytes_per_key,
        simulated_requests,
    ]
    rows = []
    for work in works:
        before = calibration()
        row = work()
        rows.append(row | {"slowness": (before + calibration()) / 2})
    return rows


def micro_verdicts(rows: Sequence[Row]) -> list[tuple[str, bool, str]]:
    """(bar, whether it holds, what was measured). Absolute times are scaled by how slow the machine is right now."""
    by_work = {row["work"]: row for row in rows}
    slowness = {row["work"]: row["slowness"] for row in rows}
    verdicts = []

    def at_most(bar: str, value: float, bound: float, unit: str) -> None:
        verdicts.append((bar, value <= bound, f"{value:,.1f} {unit} (bar {bound:,.0f})"))

    def at_least(bar: str, value: float, bound: float, unit: str) -> None:
        verdicts.append((bar, value >= bound, f"{value:,.0f} {unit} (bar {bound:,.0f})"))

    small = by_work["longest_prefix_8x64"]
    for name in ("p50", "p99") if "dynamo_radix_tree" in small else ():
        at_most(f"longest prefix 8x64 {name}", small["ours"][name], small["dynamo_radix_tree"][name], "us, Dynamo's")
    events = by_work["events_applied"]
    at_most(
        "longest prefix 64x2048 p50",
        by_work["longest_prefix_64x2048"]["ours"]["p50"] / slowness["longest_prefix_64x2048"],
        600,
        "us",
    )
    at_most(
        "whole decision p50", by_work["whole_decision_8x64"]["ours"]["p50"] / slowness["whole_decision_8x64"], 150, "us"
    )
    at_least("events applied", events["ours"]["median"] * slowness["events_applied"], 500_000, "blocks/s")
    at_most("longest slice of events", events["longest_slice_ms"] / slowness["events_applied"], 2, "ms")
    at_most("bytes per key", by_work["bytes_per_key"]["ours"], 200, "bytes")
    at_least(
        "simulator", by_work["simulated_requests"]["ours"]["median"] * slowness["simulated_requests"], 300, "requests/s"
    )
    return verdicts


def _quantiles(rounds: Sequence[Sequence[float]]) -> dict[str, float]:
    samples = sorted(sample for one in rounds for sample in one)
    return {"p50": statistics.median(samples), "p99": samples[int(0.99 * len(samples))]}


def _spread(values: Sequence[float]) -> list[float]:
    return [min(values), statistics.median(values), max(values)]


if __name__ == "__main__":
    found = all_micro_rows()
    print(json.dumps(found, indent=1))

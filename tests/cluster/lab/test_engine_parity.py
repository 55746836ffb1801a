"""The simulated replica does what the engine does, step by step, because it is made of the same parts (C46)."""

from collections.abc import Sequence

import torch

from cache.events import KVEvent
from cache.kv_cache_manager import KVCacheManager
from cluster.lab.arrival_plan import OpenLoop
from cluster.lab.cost_model import StepWork
from cluster.lab.fleet import Fleet
from cluster.lab.fleet_config import FleetConfig
from cluster.lab.scenario import lab_hasher
from cluster.lab.trace import Trace
from replica.engine.engine import Engine
from replica.engine.observer import EngineObserver
from replica.engine.scheduler import Scheduler
from replica.messages import GenerateRequest
from replica.model.runner import BlockTableOf
from replica.plan import StepPlan
from replica.sampling_params import SamplingParams
from tests.cluster.lab.workloads import COSTS, sessions

VOCAB = 8


class Silent:
    """Text that nobody reads."""

    stopped = False

    def push(self, token_id: int, may_stop: bool = True) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Words:
    eos_token_ids: frozenset[int] = frozenset()
    vocab_size = 2**31
    max_model_len = 10_000

    def text_stream(
        self, prompt_ids: Sequence[int], stop: Sequence[str], shown_token_ids: Sequence[int] = ()
    ) -> Silent:
        return Silent()


class CostRunner:
    """A forward pass that only takes time. Its tokens are always the first of the vocabulary."""

    def __init__(self) -> None:
        self.now = 0.0

    def run(self, plan: StepPlan, block_table_of: BlockTableOf) -> torch.Tensor:
        self.now += COSTS.seconds(StepWork.of(plan))
        logits = torch.zeros(sum(item.samples for item in plan.scheduled), VOCAB)
        logits[:, 0] = 1.0
        return logits


class Events(EngineObserver):
    def __init__(self) -> None:
        self.seen: list[KVEvent] = []

    def kv_events(self, events: Sequence[KVEvent]) -> None:
        self.seen += events


def run_engine(
    trace: Trace, times: Sequence[float], config: FleetConfig
) -> tuple[list[tuple[float, ...]], list[KVEvent], int]:
    """(TTFT, total seconds, cached tokens) of each request, all events, and steps made."""
    hasher, runner, events = lab_hasher(config.block_size), CostRunner(), Events()
    scheduler = Scheduler(
        KVCacheManager(config.num_blocks, config.block_size), hasher, max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens, watermark_pages=int(config.num_blocks * config.watermark),
    )  # fmt: skip
    engine = Engine(
        scheduler, runner, Words(), hasher, max_waiting_requests=10_000, max_waiting_tokens=10**9, observer=events,
        clock=lambda: runner.now,
    )  # fmt: skip
    found: dict[str, list[float]] = {}
    waiting = list(enumerate(times))
    while waiting or engine.has_work:
        if not engine.has_work:
            runner.now = max(runner.now, waiting[0][1])
        while waiting and waiting[0][1] <= runner.now:
            number, moment = waiting.pop(0)
            asked = trace.requests[number]
            sampling = SamplingParams(max_tokens=asked.num_new_tokens, temperature=0.0, ignore_eos=True)
            engine.add(GenerateRequest(str(number), list(asked.prompt_ids), sampling, moment))
        for chunk in engine.step():
            times_of = found.setdefault(chunk.request_id, [runner.now - times[int(chunk.request_id)]])
            if chunk.usage is not None:
                times_of += [runner.now - times[int(chunk.request_id)], chunk.usage.cached_tokens]
    return [tuple(found[str(number)]) for number in range(len(times))], events.seen, engine.counters.num_steps


def compare(config: FleetConfig, rate: float) -> None:
    recorded = sessions(80, answer_tokens=30)
    # The engine's runner always answers with token 0, so the simulated answers are that too.
    requests = [
        type(request)(request.prompt_ids, request.num_new_tokens, (0,) * request.num_new_tokens)
        for request in recorded.requests
    ]
    trace = Trace("parity", requests)
    times = [number / rate for number in range(len(requests))]
    in_engine, events, num_steps = run_engine(trace, times, config)
    fleet = Fleet(config, COSTS, lab_hasher(config.block_size), "round_robin")
    result = fleet.run(trace, OpenLoop(times))
    simulated = [(o.ttft_seconds, o.total_seconds, o.hit_tokens) for o in result.outcomes]
    assert result.num_steps == num_steps
    for one, other in zip(simulated, in_engine, strict=True):
        assert one[2] == other[2]
        assert abs(one[0] - other[0]) < 1e-6
        assert abs(one[1] - other[1]) < 1e-6
    replica = fleet._replicas[0]
    assert replica.scheduler.manager.cached_keys() == replay(events)


def replay(events: Sequence[KVEvent]) -> set[bytes]:
    keys: set[bytes] = set()
    for event in events:
        if type(event).__name__ == "BlocksStored":
            keys |= set(event.keys)
        else:
            keys -= set(event.keys)
    return keys


def test_c46_one_replica_and_one_engine_take_the_same_steps() -> None:
    compare(FleetConfig(num_replicas=1, num_blocks=400, transit_seconds=0.0), rate=4.3)


def test_c46_also_with_chunks_evictions_and_preemptions() -> None:
    config = FleetConfig(
        num_replicas=1, num_blocks=40, transit_seconds=0.0, max_num_seqs=8, max_num_batched_tokens=96
    )  # fmt: skip
    compare(config, rate=9.1)

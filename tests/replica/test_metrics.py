"""What a replica exports, by the exact names of the design's table."""

from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cache.block_hasher import BlockHasher
from replica.config import EngineConfig
from replica.engine.load import engine_load
from replica.engine.warm_up import warm_up
from replica.factory import build_engine
from replica.metrics import EngineMetrics
from tests.replica.tiny_models import greedy, loaded, random_prompt, run, tiny_engine, tiny_model

LABELS = {"model": "tiny", "process": "replica-1-abc", "replica": "1"}

COUNTERS = (
    "prompt_tokens", "generated_tokens", "hit_tokens", "prefill_saved_tokens", "prefill_saved_seconds",
    "recomputed_tokens", "requests", "preemptions", "kv_events", "inflight_shared_tokens", "computed_positions",
)  # fmt: skip
HISTOGRAMS = ("queue_seconds", "ttft_seconds", "inter_token_seconds", "request_seconds")
GAUGES = ("running_requests", "waiting_requests", "kv_blocks", "forward_pass_info")


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[str, ...]], float]:
    """Value by name and extra labels; checks that each series carries who it is."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert {name: labels.pop(name, None) for name in LABELS} == LABELS
            if "le" not in labels:
                found[sample.name, tuple(labels.values())] = sample.value
    return found


def watched_engine(**settings: Any) -> tuple[CollectorRegistry, object]:
    disable_created_metrics()
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, *LABELS.values())
    config = EngineConfig(**{"model": "tiny", "block_size": 4, "num_blocks": 32, **settings})
    engine = build_engine(config, BlockHasher(bytes(16), "tiny", 4), observer=metrics, loaded=loaded(tiny_model()))
    metrics.watch(engine)
    return registry, engine


def test_every_name_of_the_table_is_there_from_the_start() -> None:
    registry, _ = watched_engine()
    names = {name for name, _ in samples(registry)}
    assert {f"warmlane_{name}_total" for name in COUNTERS} <= names
    assert {f"warmlane_{name}_count" for name in HISTOGRAMS} <= names
    assert {f"warmlane_{name}" for name in GAUGES} <= names
    assert not any(name.endswith("_created") for name in names)


def test_tokens_that_come_back_from_the_hosts_memory_are_told_apart() -> None:
    registry, engine = watched_engine(host_kv_memory=1 << 20, num_blocks=12)
    prompt, other = random_prompt(35, seed=1), random_prompt(47, seed=2)
    for tokens in (prompt, other, prompt):
        run(engine, [greedy(tokens, 1)])  # type: ignore[arg-type]
    value = samples(registry)
    assert value["warmlane_hit_tokens_total", ("host",)] == 32
    assert value["warmlane_hit_tokens_total", ("device",)] == 0
    assert value["warmlane_prefill_saved_tokens_total", ()] == 32
    assert value["warmlane_load_seconds_total", ("host",)] > 0
    assert value["warmlane_load_bytes_total", ("host",)] == 32 // 4 * engine.page_bytes  # type: ignore[attr-defined]
    assert value["warmlane_kv_tier_bytes", ("host",)] > 0
    engine.loader.close()  # type: ignore[attr-defined]


def test_the_numbers_are_those_of_the_requests() -> None:
    registry, engine = watched_engine()
    prompt = random_prompt(18, seed=1)
    for _ in range(2):
        run(engine, [greedy(prompt, 3)])  # type: ignore[arg-type]
    value = samples(registry)
    assert value["warmlane_prompt_tokens_total", ()] == 36
    assert value["warmlane_generated_tokens_total", ()] == 6
    assert value["warmlane_hit_tokens_total", ("device",)] == 16
    assert value["warmlane_prefill_saved_tokens_total", ()] == 16
    assert value["warmlane_computed_positions_total", ()] == 18 + 2 + 2 + 2
    assert value["warmlane_requests_total", ("length",)] == 2
    assert value["warmlane_kv_events_total", ("stored",)] == 4 + 1
    assert value["warmlane_queue_seconds_count", ()] == 2
    assert value["warmlane_ttft_seconds_count", ()] == 2
    assert value["warmlane_inter_token_seconds_count", ()] == 4
    assert value["warmlane_request_seconds_count", ()] == 2
    assert value["warmlane_running_requests", ()] == value["warmlane_waiting_requests", ()] == 0
    # The fifth block, with the answer's beginning, was computed by both and stands in two pages.
    assert [value["warmlane_kv_blocks", (state,)] for state in ("active", "cached", "free")] == [0, 6, 26]


def test_gauges_are_fresh_while_requests_run() -> None:
    registry, engine = watched_engine()
    engine.add(greedy(random_prompt(18, seed=2), 9))  # type: ignore[attr-defined]
    assert samples(registry)["warmlane_waiting_requests", ()] == 1
    engine.step()  # type: ignore[attr-defined]
    value = samples(registry)
    assert (value["warmlane_waiting_requests", ()], value["warmlane_running_requests", ()]) == (0, 1)
    assert value["warmlane_kv_blocks", ("active",)] == 5


def test_a_larger_page_counts_as_the_blocks_that_it_holds() -> None:
    registry, engine = watched_engine(page_size=16)
    engine.add(greedy(random_prompt(18, seed=2), 9))  # type: ignore[attr-defined]
    engine.step()  # type: ignore[attr-defined]
    value = samples(registry)
    assert [value["warmlane_kv_blocks", (state,)] for state in ("active", "cached", "free")] == [8, 0, 24]
    load = engine_load(engine.scheduler, engine.speed)  # type: ignore[attr-defined]
    assert (load.num_blocks, load.num_free_blocks) == (32, 24)
    while engine.has_work:  # type: ignore[attr-defined]
        engine.step()  # type: ignore[attr-defined]
    value = samples(registry)
    assert [value["warmlane_kv_blocks", (state,)] for state in ("active", "cached", "free")] == [0, 8, 24]


def test_warm_up_measures_the_speed_and_leaves_nothing_behind() -> None:
    engine = tiny_engine(num_blocks=64)
    warm_up(engine)
    load = engine_load(engine.scheduler, engine.speed)
    assert load.prefill_tokens_per_second > 0
    assert load.decode_step_seconds > 0
    assert (load.num_running, load.num_waiting, load.queued_prefill_tokens) == (0, 0, 0)
    assert (load.num_free_blocks, load.num_blocks) == (64, 64)
    assert engine.manager.cached_keys() == set()
    assert engine.counters.num_prompt_tokens == engine.counters.num_computed_positions == 0


def test_saved_seconds_use_the_measured_rate() -> None:
    engine = tiny_engine(block_size=16)
    prompt = random_prompt(200, seed=3)
    run(engine, [greedy(prompt, 1)])
    rate = engine.speed.prefill_tokens_per_second
    run(engine, [greedy(prompt, 1)])
    assert engine.counters.prefill_saved_seconds == 192 / rate

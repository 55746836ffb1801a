"""Replicas that begin and end while others run, around one real Redis and real sockets: warmth goes from one to the
next, once, and nothing that ends or lies costs more than time."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import pytest

from cache.block_hasher import BlockHasher
from cache.wire.records import ReplicaRegistration
from cache.wire.redis_keys import RedisKeys
from replica import page_exchange
from replica.engine.async_engine import AsyncEngine
from replica.engine.engine import Engine
from replica.event_publisher import EventPublisher
from replica.loading.page_source import EnginePages
from replica.messages import GenerateRequest, TokenChunk
from replica.page_exchange import PageExchange
from replica.peers import Peers
from tests.replica.loading.test_pull import SECRET, cold, pulling_engine
from tests.replica.tiny_models import BLOCK_SIZE, greedy, random_prompt
from tests.valkey_process import ValkeyProcess
from tests.waiting import wait_until

B = BLOCK_SIZE
KEYS = RedisKeys("tiny")
HASHER = BlockHasher(SECRET, "tiny", B)
NAMES = count()


class Replica:
    """As `ReplicaDeployment` puts it together, without Ray."""

    def __init__(self, redis_url: str, computed: Sequence[list[int]] = (), **config: object) -> None:
        """computed: prompts that are in its first snapshot."""
        self.name = f"replica-{next(NAMES)}"
        built = pulling_engine(**config)
        assert isinstance(built.page_source, EnginePages)
        assert built.page_transfer is not None
        self.engine = AsyncEngine(built)
        peers = Peers(redis_url, KEYS, HASHER.canary, self.name)
        self.exchange = PageExchange(
            self.engine, built.page_source, built.page_transfer, peers, SECRET, self.name, "127.0.0.1"
        )
        registration = ReplicaRegistration(
            self.name, "00", HASHER.canary, B, 64, 1.0, self.exchange.address.to_text(), 1
        )
        self.publisher = EventPublisher(redis_url, KEYS, registration, self.engine.load)
        built.books.observer.kv_events = self.publisher.publish  # type: ignore[method-assign]
        self.num_joined = self.exchange.join()
        for prompt in computed:
            self.ask(prompt)
        self.publisher.start()
        wait_until(lambda: self.publisher.connected, "it is registered")

    def ask(self, prompt: list[int], max_tokens: int = 1) -> list[int]:
        """The answer; how much of it was cached is in `hits`."""

        def run(engine: Engine) -> list[TokenChunk]:
            request: GenerateRequest = greedy(prompt, max_tokens)
            engine.add(request)
            before, chunks = engine.counters.num_hit_tokens, []
            while engine.has_work:
                chunks += engine.step()
            self.hits = engine.counters.num_hit_tokens - before
            engine.manager.check_invariants()
            return chunks

        return [token for chunk in self.engine.wait_for(run) for token in chunk.token_ids]

    def stop(self) -> int:
        num_left = self.exchange.leave()
        self.publisher.stop()
        self.engine.close()
        self.exchange.close()
        return num_left


@pytest.fixture
def start(valkey: ValkeyProcess) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def begin(**config: object) -> Replica:
        started.append(Replica(valkey.url, **config))
        return started[-1]

    yield begin
    for replica in started:
        replica.exchange.close()
        replica.publisher.stop()
        replica.engine.close()


HOT, HOTTER, ONCE = (random_prompt(8 * B + 1, seed=seed) for seed in (11, 12, 13))


def warm(replica: Replica) -> None:
    for prompt, num_times in ((ONCE, 1), (HOT, 2), (HOTTER, 4)):
        for _ in range(num_times):
            replica.ask(prompt)


def test_who_begins_has_what_was_used_more_than_once_the_hottest_first(start: Callable[..., Replica]) -> None:
    first = start()
    warm(first)
    second = start()
    assert second.num_joined == 16
    for prompt, num_hits in ((HOT, 8 * B), (HOTTER, 8 * B), (ONCE, 0)):
        assert second.ask(prompt, 4) == cold(4, prompt)[0]
        assert second.hits == num_hits
    small = start(num_blocks=24)  # half of its pool, so the hottest prompt and half of the next one
    assert small.num_joined == 12
    small.ask(HOTTER)
    assert small.hits == 8 * B


def test_the_first_one_begins_cold_and_who_gives_nothing_is_not_asked(
    start: Callable[..., Replica], valkey: ValkeyProcess
) -> None:
    assert start().num_joined == 0
    with valkey.client() as client:
        client.sadd(KEYS.members, "gone/00", "broken/00")
        client.set(KEYS.registration("broken/00"), b"no registration")
    assert start().num_joined == 0


def test_a_redis_that_is_away_costs_a_cold_start(valkey_process: ValkeyProcess) -> None:
    assert Peers(valkey_process.url, KEYS, HASHER.canary, "a").addresses() == {}
    assert Peers(None, KEYS, HASHER.canary, "a").addresses() == {}


def test_who_ends_leaves_to_others_what_nobody_else_has(start: Callable[..., Replica]) -> None:
    first, second, third = start(), start(computed=[HOT]), start()
    warm(first)
    assert first.stop() == 16
    found = {}
    for name, prompt in (("hot", HOT), ("hotter", HOTTER), ("once", ONCE)):
        for number, replica in enumerate((second, third)):
            assert replica.ask(prompt, 4) == cold(4, prompt)[0]
            found[name, number] = replica.hits
    assert (found["hot", 0], found["hot", 1]) == (8 * B, 0)
    for name in ("hotter", "once"):  # each prompt lies whole with one of them
        assert sorted((found[name, 0], found[name, 1])) == [0, 8 * B]


def test_all_that_end_together_end_soon(start: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have the other for a peer that still lives."""
    first, second = start(), start()
    warm(first)
    second.exchange._importer.close()
    assert first.stop() == 0
    assert second.stop() == 0


def test_a_reset_while_pages_come_leaves_none_of_them(
    start: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = start(), start()
    warm(first)
    importer = second.exchange._importer
    write = importer._memory.write

    def reset_and_write(page_id: int, blob: object) -> None:
        second.engine.wait_for(lambda engine: engine.reset_prefix_cache())
        write(page_id, blob)  # type: ignore[arg-type]

    monkeypatch.setattr(importer._memory, "write", reset_and_write)
    second.exchange.join()
    assert second.engine.wait_for(lambda engine: engine.manager.cached_keys()) == set()
    assert second.engine.wait_for(lambda engine: engine.manager.pool.num_active) == 0


def test_a_page_that_is_gone_by_then_is_passed_over(start: Callable[..., Replica]) -> None:
    first, second = start(), start()
    warm(first)
    hottest = first.engine.engine.page_source.hottest(100)  # type: ignore[union-attr]
    gone = hottest[3][-1]
    first.engine.wait_for(lambda engine: engine.manager.pool.index.drop_page(engine.manager.pool.index.find(gone)))
    taken = second.exchange._importer.take(first.exchange.address, hottest, page_exchange.time.monotonic() + 60)
    assert taken == len(hottest) - 1
    assert second.engine.wait_for(lambda engine: engine.num_importing_pages) == 0

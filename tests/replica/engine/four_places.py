"""What the engine machine is made of: pages in four places without a thread, and the answers of requests alone."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cache.tiers.colder_tiers import ColderTiers
from cache.tiers.disk import DiskTier
from cache.tiers.host import HostTier
from replica.engine.engine import Engine
from replica.loading.page_memory import PageMemory
from replica.loading.page_source import EnginePages
from replica.messages import GenerateRequest
from tests.cache.tiers.disk_pages import bytes_for
from tests.replica.loading.scripted_loader import ScriptedLoader
from tests.replica.tiny_models import BLOCK_SIZE, greedy, random_prompt, run, tiny_engine

EOS = 7
SHARED = [random_prompt(length, seed=length) for length in (3, 9, 17, 24, 37, 40)]


@cache
def giver_of(blocks_per_page: int) -> Engine:
    """An engine that has computed what it is asked for when it is asked; its pool is small, too."""
    return tiny_engine(num_blocks=32, page_size=blocks_per_page * BLOCK_SIZE, watermark=0.0)


def memory_of(engine: Engine) -> PageMemory:
    return PageMemory(engine._runner._pages)  # type: ignore[attr-defined]


def num_equal(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@cache
def alone(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """24 greedy tokens without cache and company; every shorter answer is a beginning of it."""
    return tuple(run(tiny_engine(prefix_caching=False, num_blocks=64), [greedy(prompt, 24)])[0])


def expected_tokens(request: GenerateRequest) -> tuple[int, ...]:
    answer = alone(tuple(request.token_ids))[: request.sampling.max_tokens]
    for position, token in enumerate(answer):
        if token == EOS or token in request.sampling.stop_token_ids:
            return answer[: position + 1]
    return answer


@dataclass(frozen=True)
class WrittenFolder:
    """A disk tier that writes when its `work` is called. max_bytes: its bound."""

    path: Path
    disk: DiskTier
    max_bytes: int


def attach_tiers(engine: Engine, num_host_pages: int, num_disk_pages: int) -> WrittenFolder | None:
    """What the factory does, but that nothing happens in threads."""
    memory = memory_of(engine)
    host = HostTier(num_host_pages * memory.page_bytes, memory.page_bytes) if num_host_pages else None
    if host is None and not num_disk_pages:
        return None
    tiers = ColderTiers(host, None, memory.page_bytes, memory.bytes_of)
    engine.manager.attach(tiers)
    if not num_disk_pages:
        return None
    path, max_bytes = Path(tempfile.mkdtemp()), bytes_for(num_disk_pages, memory.page_bytes)
    tiers.disk = disk = DiskTier(
        path,
        max_bytes,
        memory.page_bytes,
        b"tiny",
        write_bytes_per_second=float("inf"),
        on_change=tiers.disk_changed,
        background=False,
    )
    return WrittenFolder(path, disk, max_bytes)


def attach_loader(engine: Engine, giver: Engine | None) -> ScriptedLoader | None:
    """giver: whose pages may be pulled."""
    tiers, peers = engine.manager.tiers, {}
    if giver is not None:
        peers["giver"] = EnginePages(giver.manager, memory_of(giver), b"tiny")
    if tiers is None and not peers:
        return None
    loader = ScriptedLoader(memory_of(engine), tiers, peers)
    engine.loader = engine._loads._loader = loader
    engine.scheduler.can_pull = loader.can_pull
    return loader

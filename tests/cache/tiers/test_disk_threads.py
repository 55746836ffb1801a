"""One thread offers, two read, one clears, and the tier's own writes: never a wrong byte, never too many."""

import threading
from pathlib import Path
from random import Random

from tests.cache.tiers.disk_pages import Tier, bytes_for, bytes_taken
from tests.waiting import wait_until

NUM_PAGES = 8
NUM_TAKEN = 1000


def test_threads_that_share_a_tier(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=NUM_PAGES, background=True)
    wait_until(lambda: tier.is_loaded)
    failures: list[BaseException] = []
    has_ended = threading.Event()

    def run(seed: int, chances: dict[str, float]) -> None:
        random, num_taken = Random(seed), 0
        try:
            while not has_ended.is_set():
                (kind,) = random.choices(list(chances), list(chances.values()))
                number = random.randrange(3 * NUM_PAGES)
                if kind == "offer":
                    num_taken += tier.give(number)
                    if num_taken == NUM_TAKEN:
                        has_ended.set()
                elif kind == "read":
                    tier.has(number)
                elif kind == "clear":
                    tier.clear()
                else:
                    tier.block_keys()
                    assert tier.num_bytes <= bytes_for(NUM_PAGES)
        except BaseException as error:
            failures.append(error)
            has_ended.set()

    mixtures = [{"offer": 1.0}, {"read": 1.0}, {"read": 0.9, "look": 0.1}, {"look": 0.999, "clear": 0.001}]
    threads = [threading.Thread(target=run, args=mixture) for mixture in enumerate(mixtures)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    tier.close(seconds=60)
    assert tier.counts.failures == {}
    assert tier.counts.read_pages > 0 and tier.counts.written_pages > NUM_PAGES
    assert bytes_taken(tmp_path / "0") <= bytes_for(NUM_PAGES)
    again = Tier(tmp_path, num_pages=NUM_PAGES)
    again.work()
    assert all(again.has(number) for number in again.found())

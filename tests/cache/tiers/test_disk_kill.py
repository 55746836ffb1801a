"""kill -9 while pages are written, evicted and cleared: what is found afterwards is whole and right."""

import subprocess
import sys
from pathlib import Path
from random import Random

from tests.cache.tiers.disk_pages import Tier, bytes_for, bytes_taken, key

ROUNDS = 20
NUM_PAGES = 6
PAGE_BYTES = 2**20  # large, so that most of the time a page is being written
WRITE = f"""
import sys
from pathlib import Path
from random import Random
from tests.cache.tiers.disk_pages import Tier
tier, random = Tier(Path(sys.argv[1]), num_pages={NUM_PAGES}, page_bytes={PAGE_BYTES}), Random(int(sys.argv[2]))
tier.work()
while True:
    if random.random() < 0.05:
        print("clear", flush=True)
        tier.clear()
        print("cleared", flush=True)
    number = random.randrange(20)
    if tier.give(number):
        print("offered", number, flush=True)
        tier.work()
    else:
        tier.has(number)
"""


def test_nothing_wrong_is_found_after_a_kill(tmp_path: Path) -> None:
    random = Random(0)
    num_found = 0
    for seed in range(ROUNDS):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(tmp_path), str(seed)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline().split() for _ in range(random.randrange(1, 20))]
        writer.kill()
        said += [line.split() for line in writer.communicate()[0].splitlines()]

        tier = Tier(tmp_path, num_pages=NUM_PAGES, page_bytes=PAGE_BYTES)
        tier.work()
        found = tier.found()
        assert all(tier.has(number) for number in found) and tier.counts.failures == {}
        assert sorted(tier.block_keys()) == [key(number) for number in sorted(found)]
        assert bytes_taken(tmp_path / "0") <= tier.num_bytes == bytes_for(len(found), PAGE_BYTES)
        assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.rglob("cleared.*"))
        if ["cleared"] in said:
            since = said[len(said) - said[::-1].index(["cleared"]) :]
            assert found <= {int(words[1]) for words in since if words[0] == "offered"}
        num_found += len(found)
        tier.close()
    assert num_found > ROUNDS

"""What a disk tier keeps, for how long, and how fast it writes."""

import stat
from pathlib import Path

import numpy as np
import pytest

from cache.tiers.disk import DiskTier
from cache.tiers.disk_folder import DiskFolder
from cache.tiers.disk_format import HEADER_BYTES, MAX_BLOCKS
from cache.tiers.disk_state import MAX_QUEUED_BYTES
from cache.tiers.disk_writer import DiskWriter
from tests.cache.tiers.disk_pages import PAGE_BYTES, Clock, Tier, blob, bytes_for, bytes_taken, key
from tests.waiting import wait_until


def test_a_page_can_be_found_once_it_is_written(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    assert tier.give(1)
    assert not tier.find(key(1)) and not tier.has(1)
    tier.work()
    assert tier.find(key(1)) and tier.has(1)
    assert not tier.find(key(2)) and not tier.has(2)


@pytest.mark.parametrize("page_bytes", [1, 4095, 4096, 4097, 737_280])
def test_pages_of_any_size_come_back_whole(tmp_path: Path, page_bytes: int) -> None:
    tier = Tier(tmp_path, page_bytes=page_bytes)
    tier.put(1, 2, 3)
    again = tier.restarted()
    assert all(again.has(number) for number in (1, 2, 3))


@pytest.mark.parametrize("num_blocks", [1, 2, MAX_BLOCKS - 1, MAX_BLOCKS])
def test_a_page_names_all_its_blocks_and_is_found_by_the_last(tmp_path: Path, num_blocks: int) -> None:
    tier = Tier(tmp_path)
    assert tier.give(*range(num_blocks))
    tier.work()
    for start in (lambda: tier, tier.restarted):
        life = start()
        assert life.told == [([key(number) for number in range(num_blocks)], [])]
        assert sorted(life.block_keys()) == [key(number) for number in range(num_blocks)]
        assert life.found() == {num_blocks - 1}


def test_the_page_is_copied_when_it_is_offered(tmp_path: Path) -> None:
    tier, page = Tier(tmp_path), bytearray(blob(key(1)))
    assert tier.offer([key(1)], page)
    page[:] = bytes(PAGE_BYTES)
    tier.work()
    assert tier.has(1)


def test_pages_of_numbers_are_bytes_too(tmp_path: Path) -> None:
    tier, page = Tier(tmp_path, page_bytes=4000), np.arange(1000, dtype=np.float32).reshape(10, 100)
    assert tier.offer([key(1)], memoryview(page))
    tier.work()
    target = np.zeros_like(page)
    assert tier.read_into(key(1), memoryview(target))
    assert (target == page).all()


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    tier, good = Tier(tmp_path), blob(key(1))
    columns = memoryview(np.zeros((PAGE_BYTES, 2), np.uint8)[:, 0])
    too_many = [key(number) for number in range(MAX_BLOCKS + 1)]
    for keys, page in [([], good), ([b"short"], good), (too_many, good), ([key(1)], good[1:]), ([key(1)], columns)]:
        assert not tier.offer(keys, page)
    assert tier.counts.refused == {"malformed": 5}
    tier.put(1)
    for target in (bytearray(PAGE_BYTES - 1), memoryview(good), memoryview(columns)):
        assert not tier.read_into(key(1), target)  # type: ignore[arg-type]
    assert tier.has(1)


def test_a_page_is_taken_once(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    assert tier.give(1) and not tier.give(1)
    tier.work()
    assert not tier.give(1)
    assert tier.counts.refused == {"present": 2}
    assert tier.counts.written_pages == 1


def test_the_bound_holds_with_everything_counted(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=5)
    for number in range(40):
        tier.put(number)
        assert bytes_taken(tmp_path / "0") <= tier.num_bytes <= bytes_for(5)
    assert tier.num_pages == 5


def test_the_bound_holds_while_a_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, write, taken = Tier(tmp_path, num_pages=3), DiskFolder.write, []

    def write_and_look(*arguments: object) -> None:
        write(*arguments)  # type: ignore[arg-type]
        taken.append(bytes_taken(tmp_path / "0"))

    monkeypatch.setattr(DiskFolder, "write", write_and_look)
    tier.put(*range(10))
    assert len(taken) == 10 and max(taken) <= bytes_for(3)


def test_the_least_recently_used_page_goes_first(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=3)
    tier.put(1, 2, 3)
    assert tier.has(1)
    tier.put(4)
    assert tier.found() == {1, 3, 4}
    assert not tier.give(3)  # it left the device just now
    tier.put(5)
    assert tier.found() == {3, 4, 5}


def test_a_restart_finds_all_pages_and_the_order_of_their_use(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=4)
    tier.put(1, 2, 3, 4)
    assert tier.has(1)
    again = tier.restarted(num_pages=4)
    assert again.is_loaded and again.found() == {1, 2, 3, 4}
    again.put(5, 6)
    assert again.found() == {1, 4, 5, 6}


def test_a_smaller_bound_keeps_what_was_used_last(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=9)
    tier.put(*range(9))
    assert tier.has(0)
    again = tier.restarted(num_pages=3)
    assert again.found() == {0, 7, 8}
    assert bytes_taken(tmp_path / "0") <= again.num_bytes <= bytes_for(3)
    assert again.counts.removed_pages == 6


def test_a_page_that_a_start_has_not_come_to_is_not_written_twice(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1)
    tier.die()
    again = Tier(tmp_path)
    assert not again.is_loaded and again.give(1)
    again.work()
    assert again.has(1) and again.num_bytes == bytes_for(1)
    assert (again.counts.written_pages, again.counts.refused) == (0, {"present": 1})


def test_changes_are_told_of_each_block_once(tmp_path: Path) -> None:
    """Block 1 lies in two pages: in one that was not full, and in the same one full."""
    tier = Tier(tmp_path, num_pages=2)
    assert tier.give(0, 1) and tier.give(0, 1, 2)
    tier.work()
    assert tier.told == [([key(0), key(1)], []), ([key(2)], [])]
    tier.put(3)
    assert tier.told[2:] == [([key(3)], [])]  # the smaller page went, but the larger one has its blocks
    tier.put(4)
    assert sorted(tier.told[4][1] or tier.told[3][1]) == [key(0), key(1), key(2)]


def test_a_listener_that_raises_harms_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def raises(stored: object, removed: object) -> None:
        raise RuntimeError("listener")

    tier = Tier(tmp_path, on_change=raises)
    tier.put(1, 2)
    assert tier.found() == {1, 2} and "listener" in caplog.text


def test_a_clear_forgets_what_is_on_disk_and_what_waits(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1, 2)
    assert tier.give(3)
    tier.clear()
    assert tier.found() == set() and tier.block_keys() == []
    tier.work()
    assert tier.found() == set() and tier.told[-1] == ([], [key(1), key(2)])
    assert tier.num_bytes == bytes_for(0) and not list(tmp_path.rglob("*.page"))
    tier.put(1)
    assert tier.restarted().found() == {1}


def test_a_clear_reaches_the_page_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, write = Tier(tmp_path), DiskFolder.write

    def write_and_clear(*arguments: object) -> None:
        write(*arguments)  # type: ignore[arg-type]
        tier.clear()

    assert tier.give(1) and tier.give(2)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "write", write_and_clear)
        tier.work()
    assert tier.found() == set()
    tier.work()
    assert not list(tmp_path.rglob("*.page")) and not list(tmp_path.rglob("*.tmp"))
    assert tier.restarted().found() == set()


def test_a_clear_reaches_the_page_that_is_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, read = Tier(tmp_path), DiskFolder.read

    def read_and_clear(*arguments: object) -> None:
        read(*arguments)  # type: ignore[arg-type]
        tier.clear()

    tier.put(1)
    monkeypatch.setattr(DiskFolder, "read", read_and_clear)
    assert not tier.has(1)


def test_a_clear_holds_where_the_process_is_killed_after_it(tmp_path: Path) -> None:
    """The files are still there; what is set aside is no page, and the next start removes it."""
    tier = Tier(tmp_path)
    tier.put(1, 2)
    tier.clear()
    assert len(list(tmp_path.rglob("*.page"))) == 2
    tier.die()
    again = Tier(tmp_path)
    again.work()
    assert again.found() == set() and not list(tmp_path.rglob("*.page"))


def test_a_page_evicted_while_it_is_read_is_a_hit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, read = Tier(tmp_path, num_pages=1), DiskFolder.read

    def read_and_evict(*arguments: object) -> None:
        read(*arguments)  # type: ignore[arg-type]
        tier.put(2)

    tier.put(1)
    monkeypatch.setattr(DiskFolder, "read", read_and_evict)
    assert tier.has(1)
    assert tier.found() == {2} and tier.counts.failures == {}


def test_no_more_is_written_than_the_rate(tmp_path: Path) -> None:
    clock, file_bytes = Clock(), HEADER_BYTES + PAGE_BYTES
    tier = Tier(tmp_path, write_bytes_per_second=file_bytes / 10, clock=clock)
    for number in range(5):
        assert tier.give(number)
    written = []
    for _ in range(41):
        wait = tier.work()
        written.append(tier.num_pages)
        assert wait is None or clock.now + wait == pytest.approx(100 + 10 * tier.num_pages)
        clock.now += 1
    assert [written[second] for second in (0, 9, 10, 19, 20, 40)] == [1, 1, 2, 2, 3, 5]


def test_a_rate_that_was_not_used_is_not_saved_up(tmp_path: Path) -> None:
    clock = Clock()
    tier = Tier(tmp_path, write_bytes_per_second=1, clock=clock)
    clock.now += 10**9
    assert tier.give(1) and tier.give(2)
    assert tier.work() == pytest.approx(HEADER_BYTES + PAGE_BYTES)
    assert tier.found() == {1}


def test_what_waits_is_bounded_and_the_refusal_says_for_what(tmp_path: Path) -> None:
    clock, page_bytes = Clock(), MAX_QUEUED_BYTES // 3
    tier = Tier(tmp_path, page_bytes=page_bytes, write_bytes_per_second=1, clock=clock)
    assert [tier.give(number) for number in range(4)] == [True, True, True, False]
    assert tier.counts.refused == {"queue": 1}
    tier.work()  # one, and then the rate says no
    assert [tier.give(number) for number in (3, 4)] == [True, False]
    assert tier.counts.refused == {"queue": 1, "rate": 1}


def test_buffers_are_used_again(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=2)
    tier.put(*range(10))
    tier.give(10)
    tier.clear()
    assert len(tier._state.queue._spare) == 1
    tier.put(11)
    assert tier.has(11)


def test_counts_say_what_went_in_and_out(tmp_path: Path) -> None:
    tier = Tier(tmp_path, num_pages=2)
    tier.put(1, 2, 3)
    assert tier.has(3) and not tier.has(1)
    counts = tier.counts
    assert (counts.written_pages, counts.read_pages, counts.removed_pages) == (3, 1, 1)
    assert (counts.written_bytes, counts.read_bytes, counts.removed_bytes) == (3 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES)
    tier.clear()
    assert tier.counts.removed_pages == 3


def test_nobody_else_may_read_and_no_name_tells_anything(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "made")
    tier.put(1)
    for path in [tmp_path / "made", *(tmp_path / "made").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert tier.file(1).name == key(1).hex() + ".page"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_bytes": bytes_for(1) - 1}, "max_bytes must be at least"),
        ({"page_bytes": 0, "max_bytes": 10**6}, "page_bytes must be at least 1"),
        ({"write_bytes_per_second": 0}, "write_bytes_per_second must be above 0"),
    ],
)
def test_bounds_that_hold_no_page_are_refused(tmp_path: Path, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tier(tmp_path, **settings)  # type: ignore[arg-type]


def test_after_closing_everything_is_a_miss(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.put(1)
    tier.give(2)
    tier.close()
    tier.close()
    assert not tier.find(key(1)) and not tier.has(1) and not tier.give(3)
    assert tier.counts.refused == {"closed": 1}
    assert tier.restarted().found() == {1}


def test_a_close_that_may_take_time_writes_what_waits(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.give(1)
    tier.give(2)
    tier.close(seconds=10)
    assert tier.restarted().found() == {1, 2}


def test_the_thread_writes_by_itself_and_ends_with_the_tier(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, bytes_for(9), PAGE_BYTES, b"", write_bytes_per_second=1e9)
    assert tier.offer([key(1)], blob(key(1)))
    wait_until(lambda: tier.find(key(1)))
    for number in range(2, 6):
        assert tier.offer([key(number)], blob(key(number)))
    tier.close(seconds=60)
    assert tier._thread is not None and not tier._thread.is_alive()
    again = DiskTier(tmp_path, bytes_for(9), PAGE_BYTES, b"", write_bytes_per_second=1e9)
    wait_until(lambda: again.is_loaded)
    assert again.num_pages == 5
    again.close()


def test_a_close_does_not_wait_for_the_rate(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, bytes_for(9), PAGE_BYTES, b"", write_bytes_per_second=1e-6)
    for number in range(5):
        assert tier.offer([key(number)], blob(key(number)))
    tier.close()
    assert tier._thread is not None and not tier._thread.is_alive()


def test_a_page_offered_right_after_a_clear_finds_the_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clear comes when the writer has just looked for one: what it moved aside is removed before the next page."""
    tier, tidy = Tier(tmp_path, num_pages=2), DiskWriter._remove_doomed

    def tidy_and_clear(writer: DiskWriter, folder: DiskFolder) -> None:
        tidy(writer, folder)
        if tier.find(key(1)):
            tier.clear()
            assert tier.give(3)

    tier.put(1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(DiskWriter, "_remove_doomed", tidy_and_clear)
        tier.work()
    assert tier.found() == {3} and tier.counts.refused == {}

"""The weights are read once: digests are kept, believed only where nothing can have changed, and never in the way."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cache import fingerprint, fingerprint_record
from cache.fingerprint import model_fingerprint
from cache.fingerprint_record import RECORD_NAME, FileStamp, read_record, record_places

SIZE = 8 * 1024 * 1024 + 5
SECOND_NS = 1_000_000_000
UNWRITABLE = Path("/proc/nowhere/record.json")


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' files have just been written, and they cannot wait until these are old."""
    monkeypatch.setattr(fingerprint_record, "SETTLED_NS", 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (SIZE // 256) + b"12345")
    return folder


@pytest.fixture
def weights(model: Path) -> Path:
    return model / "model.safetensors"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "digests" / "record.json"


def of(folder: Path, *places: Path) -> str:
    return model_fingerprint(folder, "float32", "float32", places)


def bytes_read(call: Callable[[], object]) -> int:
    """What this process asked of its files meanwhile, by the kernel's own count."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    call()
    return count() - before


def flip(path: Path, position: int = SIZE // 2) -> None:
    """In a later step of the file system's clock than the last change: in the same one no time would tell."""
    probe = path.with_name("probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.touch()
    probe.unlink()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def rewritten(place: Path, change: Callable[[dict], object]) -> None:
    fields = json.loads(place.read_text())
    change(fields["files"]["model.safetensors"])
    place.write_text(json.dumps(fields))


def test_the_second_time_no_byte_of_the_weights_is_read(model: Path, place: Path) -> None:
    assert bytes_read(lambda: of(model, place)) >= SIZE
    assert bytes_read(lambda: of(model, place)) < 100_000
    assert of(model, place) == of(model)


def test_without_a_place_all_is_read_each_time_and_a_warning_says_so(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for places in ((), (UNWRITABLE,)):
        for _ in range(2):
            caplog.clear()
            assert bytes_read(lambda places=places: of(model, *places)) >= SIZE
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
            assert f"the weights in {model} cannot be kept" in caplog.text
    assert "/proc/nowhere" in caplog.text


def test_what_cannot_be_written_beside_the_weights_goes_to_the_next_place(
    model: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in an image whose folder of models is read-only."""
    assert bytes_read(lambda: of(model, UNWRITABLE, place)) >= SIZE
    assert bytes_read(lambda: of(model, UNWRITABLE, place)) < 100_000
    assert not caplog.records


def test_a_stale_record_beside_the_weights_does_not_hide_the_right_one(model: Path, place: Path, weights: Path) -> None:
    beside = model / RECORD_NAME
    of(model, beside)
    flip(weights)
    right = of(model, place)
    assert bytes_read(lambda: of(model, beside, place)) < 100_000
    assert of(model, beside, place) == right


@pytest.mark.parametrize("how", ["in place", "renamed over it"])
def test_other_bytes_of_the_same_size_and_mtime_are_seen(model: Path, place: Path, weights: Path, how: str) -> None:
    """As `cp -p` and `rsync -t` leave them: ctime and inode tell."""
    before, times = of(model, place), weights.stat()
    target = weights if how == "in place" else Path(shutil.copy(weights, model / "new"))
    flip(target)
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    target.replace(weights)
    after = weights.stat()
    assert (after.st_size, after.st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    assert of(model, place) == of(model) != before


def test_a_file_with_another_mtime_or_size_is_hashed_anew_and_the_others_are_not(
    model: Path, place: Path, weights: Path
) -> None:
    second = model / "model-2.safetensors"
    second.write_bytes(bytes(1000))
    before = of(model, place)
    os.utime(second, ns=(0, 0))
    assert 1000 <= bytes_read(lambda: of(model, place)) < 100_000
    assert of(model, place) == before
    second.write_bytes(bytes(1001))
    assert of(model, place) == of(model) != before
    second.unlink()
    os.utime(weights, ns=(0, 0))
    assert bytes_read(lambda: of(model, place)) >= SIZE
    assert set(read_record(place)) == {"model.safetensors"}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"5", b"{}", b"\xff\xfe", b"[" * 100_000, b" " * (17 << 20), b'{"scheme": 1e999}',
        pytest.param(None, id="half of it"),
    ],
)  # fmt: skip
def test_a_torn_record_is_computed_again(model: Path, place: Path, text: bytes | None) -> None:
    right, whole = of(model, place), place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2] if text is None else text)
    assert of(model, place) == right
    assert place.read_bytes() == whole


MALFORMED: list[Callable[[dict], object]] = [
    lambda entry: entry.update(digest="ab"),
    lambda entry: entry.update(digest="zz" * 32),
    lambda entry: entry.update(digest=" ".join(["ab"] * 32)),
    lambda entry: entry.update(digest=None),
    lambda entry: entry.update(size=str(entry["size"])),
    lambda entry: entry.update(size=float(entry["size"])),
    lambda entry: entry.update(inode=True),
    lambda entry: entry.update(more=1),
    lambda entry: entry.pop("ctime_ns"),
    lambda entry: entry.pop("digest"),
    lambda entry: entry.clear(),
]


@pytest.mark.parametrize("change", MALFORMED)
def test_a_malformed_record_is_computed_again(model: Path, place: Path, change: Callable[[dict], object]) -> None:
    right, whole = of(model, place), place.read_bytes()
    rewritten(place, change)
    assert read_record(place) == {}
    assert of(model, place) == right
    assert place.read_bytes() == whole


@pytest.mark.parametrize(("field", "value"), [("scheme", "another"), ("files", []), ("files", None)])
def test_a_foreign_record_is_computed_again(model: Path, place: Path, field: str, value: object) -> None:
    right, whole = of(model, place), place.read_bytes()
    place.write_text(json.dumps(json.loads(whole) | {field: value}))
    assert of(model, place) == right
    assert place.read_bytes() == whole


def test_a_record_in_whose_place_a_folder_lies_is_no_error(
    model: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.mkdir(parents=True)
    assert of(model, place) == of(model, place)
    assert "cannot be kept" in caplog.text
    assert list(place.parent.iterdir()) == [place], "no draft is left"


def test_what_another_user_could_have_written_is_not_believed(model: Path, place: Path) -> None:
    """A false digest lets one model's pages pass for another's."""
    right = of(model, place)
    rewritten(place, lambda entry: entry.update(digest="00" * 32))
    assert of(model, place) != right, "the record is what is believed here"
    place.chmod(0o666)
    assert of(model, place) == right
    assert place.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_record_is_not_believed(model: Path, place: Path) -> None:
    right = of(model, place)
    rewritten(place, lambda entry: entry.update(digest="00" * 32))
    os.chown(place, 12345, -1)
    assert of(model, place) == right


def test_a_file_written_in_the_same_moment_is_not_kept_yet(
    model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second write in the same step of the file system's clock would leave its times as they are."""
    monkeypatch.setattr(fingerprint_record, "SETTLED_NS", 3600 * SECOND_NS)
    of(model, place)
    assert not place.exists()
    assert not caplog.records
    stamp = FileStamp(1, 0, 10**18, 7)
    assert not stamp.settled(10**18 + 3600 * SECOND_NS)
    assert stamp.settled(10**18 + 3600 * SECOND_NS + 1)


def test_the_times_of_an_image_are_not_believed(
    model: Path, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its next build may hold other weights with the same size, times and inode."""
    assert FileStamp(1, 0, 5 * SECOND_NS, 7).made_up(read_only=True)
    assert not FileStamp(1, 0, 5 * SECOND_NS, 7).made_up(read_only=False)
    assert not FileStamp(1, 0, 5 * SECOND_NS + 1, 7).made_up(read_only=True)
    monkeypatch.setattr(FileStamp, "made_up", lambda self, read_only: True)
    of(model, place)
    assert not place.exists()
    assert "may be an image" in caplog.text


@pytest.mark.parametrize("num_writes", [1, fingerprint.MAX_TRIES])
def test_weights_that_are_written_while_they_are_hashed(
    model: Path, place: Path, weights: Path, num_writes: int
) -> None:
    """Half of the old and half of the new bytes are no model's digest."""
    positions = list(range(num_writes))

    def write(done: int, total: int) -> None:
        if positions and done == total:
            flip(weights, positions.pop())

    def compute() -> str:
        return model_fingerprint(model, "float32", "float32", (place,), write)

    if num_writes < fingerprint.MAX_TRIES:
        assert compute() == of(model)
        return
    with pytest.raises(OSError, match=r"model\.safetensors is being written to"):
        compute()
    assert not place.exists()


PROCESS = """
import sys
from pathlib import Path
from cache import fingerprint_record
from cache.fingerprint import model_fingerprint
fingerprint_record.SETTLED_NS = 0
folder, place = map(Path, sys.argv[1:])
print("started", flush=True)
sys.stdin.readline()
for _ in range(40):
    place.unlink(missing_ok=True)
    print(model_fingerprint(folder, "float32", "float32", (place,)))
"""


def test_processes_that_start_at_once_do_not_break_each_other(model: Path, place: Path) -> None:
    (model / "model.safetensors").write_bytes(b"small, so that they meet at the record and not at the bytes")
    command = [sys.executable, "-c", PROCESS, str(model), str(place)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    shown = [process.communicate(timeout=120) for process in processes]
    assert {line for out, _ in shown for line in out.split()} == {of(model)}
    assert [error for _, error in shown] == ["", "", ""]
    assert list(place.parent.iterdir()) in ([place], []), "no draft is left"


def test_beside_the_weights_only_in_our_own_store(tmp_path: Path, model: Path) -> None:
    stores, cache = [tmp_path / "no such", tmp_path / "models"], tmp_path / "cache"
    ours = tmp_path / "models" / "small"
    ours.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "models")
    beside, kept = record_places(ours, stores, cache)
    assert beside == ours / RECORD_NAME
    assert record_places(tmp_path / "link" / "small", stores, cache) == (beside, kept)
    assert record_places(ours, stores, None) == (beside,)
    (theirs,) = record_places(model, stores, cache)
    assert theirs.parent == kept.parent == cache / "digests"
    assert theirs != kept
    assert record_places(model, stores, None) == ()


def test_a_users_folder_stays_as_it_is(tmp_path: Path, model: Path) -> None:
    before = sorted(os.listdir(model))
    of(model, *record_places(model, [tmp_path / "models"], tmp_path / "cache"))
    assert sorted(os.listdir(model)) == before
    assert len(list((tmp_path / "cache" / "digests").iterdir())) == 1

"""Files are kept where they can be: without a home, without a name, in folders that nobody may write to."""

import pwd
from pathlib import Path

import pytest

from replica.cache_folders import cache_folders, cache_root, usable


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def nobody(*args: object) -> None:
    raise KeyError("uid not found")


def test_xdg_comes_first_then_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_root() == tmp_path / "warmlane"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folders()[0] == tmp_path / "home" / ".cache" / "warmlane"


def test_without_home_and_name_it_is_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    """As in a container that runs under a user id that its passwd does not know."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(RuntimeError):
        Path.home()
    assert [folder.parent for folder in cache_folders()] == [temporary]
    assert cache_root().parent == temporary


def test_a_folder_that_cannot_be_made_is_passed_over(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setenv("HOME", "/dev/null")
    assert cache_root().parent == temporary


def test_a_link_in_the_temporary_folder_is_not_followed(temporary: Path, tmp_path: Path) -> None:
    """Anybody may put one there, and choose where what is run comes from."""
    (tmp_path / "elsewhere").mkdir()
    (temporary / "warmlane-0").symlink_to(tmp_path / "elsewhere")
    assert not usable(temporary / "warmlane-0")
    assert usable(tmp_path / "elsewhere")


def test_a_folder_that_is_made_is_private(tmp_path: Path) -> None:
    assert usable(tmp_path / "a" / "warmlane")
    assert (tmp_path / "a" / "warmlane").stat().st_mode & 0o777 == 0o700


def test_what_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "warmlane"
    assert usable(folder)
    assert folder.is_dir()
    folder.chmod(0o777)
    assert not usable(folder)

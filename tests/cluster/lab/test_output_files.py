"""What cannot be written is refused before the work."""

import os
from pathlib import Path

import pytest

from cluster.commands.cli import main
from cluster.lab.output_files import check_outputs

COMPARE = ["lab", "compare", "--trace", "nowhere"]  # that it is no trace is only found after the outputs were checked
FIT = ["lab", "fit", "--model", "nowhere"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*COMPARE, "--json", "."], "--json must name a file, and . is a folder"),
        ([*COMPARE, "--html", "."], "--html must name a file, and . is a folder"),
        ([*FIT, "--out", "."], "--out must name a file, and . is a folder"),
        ([*COMPARE, "--json", "no/a.json"], "--json: there is no folder no to write a.json into"),
        ([*COMPARE, "--html", "file/a.html"], "--html: there is no folder file to write a.html into"),
        ([*COMPARE, "--json", "x" * 300], "--json: x"),
        (["lab", "compare", "--trace", "file", "--json", "../here/file"], "--json and --trace name the same file"),
        ([*COMPARE, "--cost-model", "file", "--html", "file"], "--html and --cost-model name the same file"),
        ([*COMPARE, "--json", "a", "--html", "../here/a"], "--html and --json name the same file"),
    ],
)
def test_before_the_work(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "file").touch()
    monkeypatch.chdir(here)
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith(f"warmlane: {told}")
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_without_the_right_to_write(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.touch(0o400)
    with pytest.raises(ValueError, match=r"--json: .*a\.json cannot be written: Permission denied"):
        check_outputs({"--json": path})


def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept", tmp_path / "link"
    kept.write_text("earlier numbers")
    link.symlink_to(tmp_path / "later")
    check_outputs({"--json": kept, "--html": link, "--out": None})
    assert kept.read_text() == "earlier numbers"
    assert link.is_symlink() and not link.exists()
    check_outputs({"--json": Path("/dev/null"), "--html": Path("/dev/null")})


@pytest.mark.parametrize(
    ("name", "cause"), [("", "a file must have a name"), ("~nobody-of-this-name/x", "nobody-of-this-name")]
)
def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], name: str, cause: str) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "compare", "--trace", "sgd", f"--json={name}"])
    assert cause in capsys.readouterr().err

"""What the READMEs show works as it stands; what needs a live cluster is in e2e/test_printed_examples.py."""

import re
import shlex
from pathlib import Path
from random import Random

import pytest

from cluster.commands.cli import main
from router.load.views import ReplicaView
from router.policies.base import Policy, RequestShape

ROOT = Path(__file__).parent.parent


def block(page: str, beginning: str) -> str:
    """The code block of that page that begins so."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    (found,) = [code for code in blocks if code.startswith(beginning)]
    return found


def test_the_root_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_page_that_a_readme_names_is_there() -> None:
    for page in [*ROOT.glob("*.md"), *(p for p in ROOT.glob("*/**/README.md") if ".venv" not in p.parts)]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


PLACE = re.compile(r"`(\w[\w./]+(?:\.py|/))(?:: [\w., ]+)?`")


@pytest.mark.parametrize(
    "page",
    ["ARCHITECTURE.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("*/**/README.md") if ".venv" not in p.parts)],
)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    """Whole paths, or, in one line, names in or beside what was named before, or beside the page."""
    for line in (ROOT / page).read_text().splitlines():
        folders = [ROOT, (ROOT / page).parent]
        for name in PLACE.findall(line):
            found = [folder / name for folder in folders if (folder / name).exists()]
            assert found, f"{page}: {name}"
            folders.append(found[0] if name.endswith("/") else found[0].parent)


@pytest.mark.parametrize("page", ["cache/README.md", "cache/wire/README.md"])
def test_the_snippet_runs(page: str) -> None:
    exec(block(page, "from cache."), {})


def test_the_pull_of_the_transfers_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("replica/transfer/README.md", "import time"), {})
    assert capsys.readouterr().out == "8 missing\n"


def test_the_disk_tier_of_its_readme_works(tmp_path: Path) -> None:
    exec(block("cache/tiers/README.md", "from pathlib"), {"folder": tmp_path})


def test_the_policy_of_the_routers_readme_is_one() -> None:
    names: dict[str, type[Policy]] = {}
    exec(block("router/README.md", "from collections.abc"), names)
    policy = names["FewestRequests"]()
    replicas = [ReplicaView("a", 96, 2), ReplicaView("b", 16, 1), ReplicaView("c", 32, 1)]
    assert policy.choose(RequestShape(100, 10), replicas, 0.0, Random(0)).replica_id == "c"


@pytest.mark.parametrize(
    ("page", "beginning", "more"),
    [
        ("cluster/lab/README.md", "warmlane lab compare", ["--requests", "40", "--seeds", "1"]),
        ("replica/README.md", "warmlane model inspect", []),
    ],
)
def test_the_commands_run(
    page: str, beginning: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command = shlex.split(block(page, beginning))
    monkeypatch.chdir(tmp_path)
    assert main([*command[1:], *more]) == 0
    assert capsys.readouterr().out

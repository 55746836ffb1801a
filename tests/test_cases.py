"""Every case number in code, tests and pages is explained in tests/cases.md, and stands behind its reason."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CASES = ROOT / "tests/cases.md"

NUMBER = r"(?:[AC]\d+|\d{1,2}b?)"
REMARK = re.compile(rf"(?<!\w)\((?:cases? )?({NUMBER}(?:, {NUMBER})*)\)")
FIRST = re.compile(
    rf"^(?:# )?\(?{NUMBER}(?:, {NUMBER})*\)?(?::|$)|(?<![\w(])[AC]\d{{1,2}}(?=:|,? (?:is|are|and)\b|\.$)"
)
NAME = re.compile(r"^test_(?:case_)?((?:(?:[ac]\d+|\d{1,2}b?)_)+)")


def numbers_in(text: str) -> set[str]:
    """Case numbers that stand in parentheses behind their reason: (A21), (5, A21), (case 22)."""
    return {number for remark in REMARK.findall(text) for number in remark.split(", ")}


def remarks_in(source: str) -> list[str]:
    """Comments and docstrings of a Python file; numbers in its code are no case numbers."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return comments + strings


def numbers_of_tests(source: str) -> set[str]:
    """Case numbers in the names of tests: test_case_22_…, test_24_a13_…"""
    names = (node.name for node in ast.walk(ast.parse(source)) if hasattr(node, "name") and node.name)
    found = (NAME.match(name) for name in names)
    numbers = (number for match in found if match for number in match[1].strip("_").split("_"))
    return {number.upper().replace("B", "b").lstrip("0") for number in numbers}


def places() -> Iterator[tuple[str, set[str]]]:
    for folder in ("cache", "replica", "router", "cluster", "tests", "deploy"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix == ".py":
                source = path.read_text()
                numbers = numbers_in("\n".join(remarks_in(source)))
                if folder == "tests":
                    numbers |= numbers_of_tests(source)
            elif path.suffix in (".md", ".c", ".h", ".yaml", ".yml") and path != CASES:
                numbers = numbers_in(path.read_text())
            else:
                continue
            yield str(path.relative_to(ROOT)), numbers
    for page in ("README.md", "ARCHITECTURE.md"):
        yield page, numbers_in((ROOT / page).read_text())


def listed() -> set[str]:
    return set(re.findall(rf"^\| ({NUMBER}) \|", CASES.read_text(), re.MULTILINE))


def test_every_number_is_in_the_list() -> None:
    known = listed()
    assert {f"{place}: {number}" for place, numbers in places() for number in numbers - known} == set()


def test_every_line_of_the_list_is_used() -> None:
    assert listed() - {number for _, numbers in places() for number in numbers} == set()


def test_the_reason_stands_first_and_the_number_second() -> None:
    first = [
        f"{path.relative_to(ROOT)}: {remark.splitlines()[0]}"
        for folder in ("cache", "replica", "router", "cluster", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for remark in remarks_in(path.read_text())
        if FIRST.search(remark)
    ]
    assert first == []


def test_the_search_finds_what_it_should() -> None:
    for remark in (
        "# A21",
        "# (A13)",
        "# 42, C19",
        "33b: a key is missing",
        "C9, C25: near one",
        "hashable: C29.",
        "C1 and C23 are",
    ):
        assert FIRST.search(remark), remark
    for remark in ("# what comes after it (A21)", "as before (5, A21): nothing", "# 16 rows", "Gemma 2 and 3: here"):
        assert not FIRST.search(remark), remark
    found = numbers_in("dropped in the call that hands it out (A2), never later (5, A21); at most 16 of them (case 22)")
    assert found == {"A2", "5", "A21", "22"}
    assert numbers_in("blocks(16), (see A3), (1024), of 16") == set()
    source = "def test_06_07_a40_x(): ...\ndef test_case_33b_y(): ...\ndef test_c38_5x(): ..."
    assert numbers_of_tests(source) == {"6", "7", "A40", "33b", "C38"}

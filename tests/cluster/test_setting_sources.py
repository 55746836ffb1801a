"""Whatever is wrong with a file that a person wrote is one line that names it."""

from pathlib import Path

import pytest

from cluster.setting_sources import read_yaml

BROKEN = {
    b"model: x\n  replicas: [1\n": r"broken\.yaml, line 2, column 11: mapping values are not allowed here",
    b"a: [1\n": r"broken\.yaml, line 2, column 1: while parsing a flow sequence expected",
    b"a: 'open\n": r"broken\.yaml, line 2, column 1: .* found unexpected end of stream",
    b"a: !thing 3\n": r"broken\.yaml, line 1, column 4: could not determine a constructor",
    b"a: \xff\n": r"broken\.yaml is no UTF-8 text: byte 3 is 0xff",
    b"a: \x00\n": r"broken\.yaml is no YAML: unacceptable character",
    b"a: 2020-13-45\n": r"broken\.yaml is no YAML: month must be in 1",
    b"[" * 1500: r"broken\.yaml is no YAML: maximum recursion depth",
}


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_named_with_the_place(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=BROKEN[content]) as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*missing\.yaml: No such file or directory"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(ValueError, match="Is a directory"):
        read_yaml(tmp_path)


def test_what_is_right_is_read(tmp_path: Path) -> None:
    file = tmp_path / "right.yaml"
    file.write_text("a: [1, é]\n")
    assert read_yaml(file) == {"a": [1, "é"]}
    file.write_text("# nothing\n")
    assert read_yaml(file) is None

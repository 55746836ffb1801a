"""What holds of all tests: none depends on how fast the machine is, and what may be tried again says why."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.tried_again import TRIED_AGAIN, reason_to_try_again

TESTS = Path(__file__).parent
MEASURING = {"benchmarks", "gpu"}  # folders whose files measure times

# Pauses that are no wait for a state, each with the reason. Everybody else waits with `tests.waiting`.
PAUSES = {
    "waiting.py": "polls for the state",
    "deploy/prometheus_server.py": "polls, and looks whether Prometheus has ended",
    "e2e/test_idle_connections.py": "that nothing happens while time passes is what is tested",
    "cluster/serving/misbehaving_replica.py": "a process that dies cannot see whether Ray has sent its first item",
    "replica/channel/test_replica_channel.py": "polls until a number no longer grows; too early is no failure",
}  # fmt: skip


def files_of_tests() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS)
        if name.parts[0] not in MEASURING:
            yield str(name), ast.parse(path.read_text())


def is_pause(node: ast.AST) -> bool:
    """`time.sleep(x)` or `asyncio.sleep(x)`, x not 0."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"):
        return False
    return not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)


def reads_the_clock(node: ast.AST) -> bool:
    calls = (n.func.attr for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(name in ("monotonic", "perf_counter", "process_time") for name in calls)


def test_hypothesis_has_no_deadline() -> None:
    """Its 200 ms an example are missed on a busy machine."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_no_test_waits_for_a_time() -> None:
    pausing = {name for name, tree in files_of_tests() if any(is_pause(node) for node in ast.walk(tree))}
    assert pausing == set(PAUSES)


def test_no_test_asserts_a_duration() -> None:
    asserting = {
        f"{name}:{node.lineno}"
        for name, tree in files_of_tests()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) and reads_the_clock(node.test)
    }
    assert {place for place in asserting if place.partition(":")[0] not in PAUSES} == set()


def test_what_may_be_tried_again_exists_and_says_why() -> None:
    for nodeid, reason in TRIED_AGAIN.items():
        path, _, name = nodeid.partition("::")
        functions = [n.name for n in ast.walk(ast.parse((TESTS.parent / path).read_text())) if hasattr(n, "name")]
        assert name in functions, nodeid
        assert len(reason) > 20, nodeid


def test_a_name_without_parameters_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRIED_AGAIN, "tests/x.py::test_x", "Ray's own deadline")
    assert reason_to_try_again("tests/x.py::test_x[a]") == reason_to_try_again("tests/x.py::test_x")
    assert reason_to_try_again("tests/x.py::test_xy") is None

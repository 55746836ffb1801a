"""What the command line refuses, how quickly, and with which words. Nothing here starts Ray."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from cluster.commands import serve as serve_command
from cluster.commands.cli import COMMANDS, main
from cluster.config import ServeConfig
from cluster.local.machine_check import check_gpus, count_gpus
from cluster.machine.free_ports import FreePorts, PortTaken, check_free
from cluster.models.facts import read_model_facts


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command takes them for itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a model of 400 MB in bfloat16 with a window of 512 tokens (a sparse file)."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "dtype": "bfloat16"}))
    header = b"{}"
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(400_000_000)
    return folder


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def serve(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["serve", "--port", str(FreePorts()()), *arguments])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replicas", "0"], "replicas must be between 1 and 1024, got 0"),
        (["--model", "/nonexistent/model"], "neither a folder nor a hub id"),
        (["--config", "/nonexistent.yaml"], "cannot read /nonexistent.yaml: No such file or directory"),
        (["--api-keys-file", "/nonexistent.yaml"], "cannot read /nonexistent.yaml: No such file or directory"),
        (["--redis-url", "redis://127.0.0.1:1/0?password=abc"], "redis_url redis://127.0.0.1:1/0?...: Error"),
        (["--host", "203.0.113.1"], "Cannot assign requested address"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code = main(["serve", "--port", str(FreePorts()()), *arguments])
    shown, output = capsys.readouterr()
    assert code == 1
    assert message in output
    assert shown == ""  # nothing was started, so nothing is said to have stopped
    assert output.startswith("warmlane: ")
    assert output.count("\n") == 1


def test_flags_are_the_fields_of_the_configuration_and_never_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--replica", "3"])
    assert "unrecognized arguments" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    shown = capsys.readouterr().out
    for item in fields(ServeConfig):
        assert ("--" + item.name.replace("_", "-") in shown) == (item.name != "secret")


def test_a_taken_port_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], taken_port: int, model: Path
) -> None:
    code = main(["serve", "--model", str(model), "--port", str(taken_port)])
    assert code == 1
    assert f"port {taken_port} on 127.0.0.1 cannot be taken" in capsys.readouterr().err


def test_gpus_that_the_machine_lacks_are_refused(tmp_path: Path) -> None:
    config = ServeConfig(replicas=3, gpus_per_replica=1)
    with pytest.raises(ValueError, match="3 replicas with 1 GPU each need 3 GPUs, but this machine has 2"):
        check_gpus(config, there=2)
    check_gpus(config, there=3)
    check_gpus(ServeConfig(), there=0)


def test_gpus_are_counted_as_far_as_the_driver_says(tmp_path: Path) -> None:
    driver = tmp_path / "gpus"
    assert count_gpus(driver, (), {}) == 0
    assert count_gpus(driver, (tmp_path,), {}) is None
    for name in "ab":
        (driver / name).mkdir(parents=True)
    assert count_gpus(driver, (), {}) == 2
    assert count_gpus(driver, (), {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    assert count_gpus(driver, (), {"CUDA_VISIBLE_DEVICES": ""}) == 0


def test_sampling_defaults_that_no_request_may_have_are_refused_before_anything_starts(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "generation_config.json").write_text('{"temperature": 3}')
    code, error = serve(capsys, "--model", str(model), "--kv-memory", "64MiB", "--replicas", "1")
    assert code == 1
    assert "temperature in" in error
    assert "--ignore-generation-config" in error


def test_facts_of_a_model_folder(model: Path) -> None:
    facts = read_model_facts(model)
    assert (facts.window, facts.dtype, facts.weight_bytes) == (512, "bfloat16", 400_000_000)
    assert facts.loaded_bytes("float32") == 800_000_000
    assert facts.resolved_dtype("auto", on_gpu=True) == "bfloat16"
    assert facts.resolved_dtype("auto", on_gpu=False) == "float32"
    assert facts.resolved_dtype("float16", on_gpu=False) == "float16"
    assert facts.max_model_len(None) == 512
    assert facts.max_model_len(100) == 100
    with pytest.raises(ValueError, match="at most the model's window of 512 tokens, got 513"):
        facts.max_model_len(513)


def test_free_ports_are_free_and_given_once() -> None:
    ports = FreePorts()
    given = [ports() for _ in range(5)]
    assert len(set(given)) == 5
    for port in given:
        check_free("127.0.0.1", port)


def test_a_span_of_ports_steps_over_taken_ones_and_is_given_once() -> None:
    around = FreePorts().span(24)
    ports = FreePorts(around.start, around.stop - 1)
    with socket.create_server(("127.0.0.1", around[10])):
        span = ports.span(8)
        assert len(span) == 8
        assert around[10] not in span
        assert not {ports() for _ in range(4)} & set(span)
        with pytest.raises(PortTaken, match="no 30 free ports in a row"):
            ports.span(30)


def test_no_free_port_is_said(taken_port: int) -> None:
    with pytest.raises(PortTaken, match="no free port"):
        FreePorts(taken_port, taken_port + 1)()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: warmlane {command}" in capsys.readouterr().out


def test_ctrl_c_in_the_middle_is_exit_code_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    def interrupted(*args: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve_command, "check_memory", interrupted)
    code, output = serve(capsys, "--model", str(model))
    assert (code, output) == (130, "")


def test_the_command_line_starts_without_loading_torch_or_ray() -> None:
    code = "import sys; from cluster.commands import cli, serve; print(sorted({'torch', 'ray'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


REFUSED = [
    ["serve", "--replicas", "0"],
    ["serve", "--redis-url", "nonsense"],
    ["serve", "--api-keys-file", "/nonexistent.yaml"],
    ["serve", "--config", "/nonexistent.yaml"],
    ["demo", "--replicas", "0"],
    ["demo", "--policy", "fastest"],
    ["demo", "--users", "0"],
    ["model", "inspect", "--block-size", "0"],
    ["model", "inspect", "--tokens", "0"],
    ["model", "inspect", "--kv-memory", "lots"],
    ["lab", "fit", "--threads", "0"],
    ["lab", "fit", "--out", "/nonexistent/cost.json"],
    ["lab", "compare", "--trace", "sgd", "--seeds", "x"],
    ["lab", "compare", "--trace", "sgd", "--seeds", "1,1"],
    ["lab", "compare", "--trace", "sgd", "--think-seconds", "1"],
    ["lab", "compare", "--trace", "sgd", "--policies", "fastest"],
    ["lab", "compare", "--trace", "sgd", "--weights", "lmetric.speed=1"],
    ["lab", "compare", "--trace", "sgd", "--weights", "lmetric.speed=fast"],
    ["lab", "compare", "--trace", "sgd", "--json", "/nonexistent/out.json"],
    ["lab", "compare", "--trace", "sgd", "--requests", "0"],
    ["policy", "show", "--url", "nonsense"],
    ["policy", "set", "lmetric", "speed"],
    ["key", "no such name"],
]
REFUSE_ALL = """
import json, sys
from cluster.commands.cli import main
codes = [main(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps([codes, sorted({"torch", "ray", "transformers"} & set(sys.modules))]))
"""


def test_what_is_cheap_to_check_is_checked_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """One process for all of them: an import by any would show."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}  # no model is there, and none may be fetched
    done = subprocess.run(
        [sys.executable, "-c", REFUSE_ALL, json.dumps(REFUSED)],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert json.loads(done.stdout) == [[1] * len(REFUSED), []]
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["warmlane"] * len(REFUSED)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "values", "bounds"),
    [
        ("requests", ["0", "-1"], "between 1 and 1,000,000,000"),
        ("replicas", ["0", "-1"], "between 1 and 1,024"),
        ("routers", ["0", "-1"], "between 1 and 1,024"),
        ("concurrency", ["0", "-1"], "between 1 and 1,000,000"),
        ("block-size", ["0", "-1"], "between 1 and 1,024"),
        ("mooncake-block", ["0", "-1"], "between 1 and 512"),
        ("slow-replicas", ["-1"], "between 0 and 1,024"),
        ("load", ["0", "-1", "nan", "inf"], "between 0.001 and 1,000"),
        ("rate", ["0", "-1", "nan", "inf"], "between 1e-06 and 1,000,000"),
        ("think-seconds", ["-1", "nan", "inf"], "between 0 and 1,000,000"),
        ("cache-share", ["-1", "nan", "inf"], "between 0 and 1,000,000"),
        ("index-delay", ["-1", "nan", "inf"], "between 0 and 1,000,000"),
        ("event-loss", ["-1", "1", "nan"], "between 0 and 0.999"),
        ("step-noise", ["-1", "nan", "inf"], "between 0 and 10"),
    ],
)
def test_numbers_of_a_comparison_that_make_no_sense(
    capsys: pytest.CaptureFixture[str], flag: str, values: list[str], bounds: str
) -> None:
    for value in values:
        assert main(["lab", "compare", "--trace", "sgd", f"--{flag}={value}"]) == 1
        assert capsys.readouterr().err == f"warmlane: --{flag} must be {bounds}, got {value}\n"


def test_a_host_that_is_not_here_is_named() -> None:
    for host in ("999.1.1.1", "192.0.2.7"):
        with pytest.raises(PortTaken, match=f"host must be an address of this machine, got '{host}'"):
            check_free(host, 18999)

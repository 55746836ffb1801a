"""A peer's process as the benchmark sees it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.benchmarks.peer_setup import PeerUnavailable, f32_gguf, llama_cpp_folder, vllm_python

_WORKERS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Run:
    """What one peer did: outputs are the generated ids per prompt; decode_step_seconds where the worker tells it."""

    seconds: float
    first_token_seconds: float
    outputs: list[list[int]]
    decode_step_seconds: float | None = None


class Peer:
    """A worker process, stopped (SIGSTOP) whenever it is not asked, so that only one engine has the cores."""

    def __init__(self, name: str, command: Sequence[str], threads: int, folder: Path | None = None):
        self.name = name
        env = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._log = (_WORKERS.parent / "out" / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            command, cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )

    def __enter__(self) -> Self:
        try:
            self._answer()
        except PeerUnavailable:
            self._process.kill()
            raise
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def run(self, prompts: list[list[int]], max_tokens: int) -> Run:
        if self._process.stdin is None:
            raise RuntimeError("the worker was started without a pipe")
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}) + "\n")
            self._process.stdin.flush()
            return Run(**self._answer())
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, object]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            log = Path(self._log.name).read_text(errors="replace").strip().splitlines()
            raise PeerUnavailable(f"its worker ended: {(log or ['no output'])[-1]}")
        answer: dict[str, object] = json.loads(line)
        return answer


def _python_worker(name: str, script: str, *options: str, python: Callable[[], Path] = lambda: Path(sys.executable)):
    def start(model: Path, threads: int) -> Peer:
        command = [str(python()), str(_WORKERS / script), str(model), str(threads), *options]
        return Peer(name, command, threads)

    return start


def _llama_cpp(model: Path, threads: int) -> Peer:
    folder = llama_cpp_folder()
    command = ["node", str(_WORKERS / "llama_cpp_worker.mjs"), str(f32_gguf()), str(threads)]
    return Peer("llama_cpp", command, threads, folder)


PEERS: dict[str, Callable[[Path, int], Peer]] = {
    "ours": _python_worker("ours", "warmlane_worker.py"),
    "cache_off": _python_worker("cache_off", "warmlane_worker.py", "cache-off"),
    "float32_weights": _python_worker("float32_weights", "warmlane_worker.py", "float32-weights"),
    "deterministic": _python_worker("deterministic", "warmlane_worker.py", "deterministic"),
    "deterministic_without_kernels": _python_worker(
        "deterministic_without_kernels", "warmlane_worker.py", "deterministic", "without-kernels"
    ),
    "linears": _python_worker("linears", "linears_worker.py"),
    "linears_and_attention": _python_worker("linears_and_attention", "linears_worker.py", "attention"),
    "transformers_cb": _python_worker("transformers_cb", "transformers_cb_worker.py"),
    "transformers_generate": _python_worker("transformers_generate", "transformers_generate_worker.py"),
    "transformers_forward": _python_worker("transformers_forward", "transformers_forward_worker.py"),
    "vllm_cpu": _python_worker("vllm_cpu", "vllm_worker.py", python=vllm_python),
    "llama_cpp": _llama_cpp,
}
"""Name in the report -> what starts its process. Raises PeerUnavailable where it cannot be had."""

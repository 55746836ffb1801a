"""The other routers of `bench_router --part peers`, each from PyPI in a venv of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peer_setup import PeerUnavailable, peers_folder

PACKAGES = {"sglang-router": "0.3.2", "smg": "1.13.0", "vllm-router": "0.1.17"}


def router_command(name: str) -> Path:
    """The console script of a router, installed into Warmlane's cache folder the first time. Raises PeerUnavailable."""
    folder = peers_folder() / f"{name}-{PACKAGES[name]}"
    stamp = folder / ".installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"{name}=={PACKAGES[name]}"])
        stamp.touch()
    return folder / "bin" / name


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise PeerUnavailable(f"{' '.join(command[-2:])} failed: {''.join(last)}")

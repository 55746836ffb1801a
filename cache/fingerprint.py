"""The identity of a model's weights, for the root of all block keys."""

import json
import struct
from hashlib import blake2b
from pathlib import Path

FINGERPRINT_SCHEME = b"warmlane-model-1"
SAMPLE_BYTES = 64 * 1024
SAMPLES_PER_FILE = 16
MAX_HEADER_BYTES = 64 * 1024 * 1024

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
# Written by the library that saved the folder, without any bearing on the numbers that a model computes.
_IRRELEVANT_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version"})


def model_fingerprint(model_dir: str | Path, dtype: str, kv_dtype: str) -> str:
    """32 hex digits that stand for what a model computes, equal in every process and wherever the folder lies.

    Covers config.json, both dtypes, and of every weight file its name, size, safetensors header and SAMPLES_PER_FILE
    evenly spread samples of SAMPLE_BYTES, so that it costs milliseconds for any size (C44). A change of weights that
    leaves headers, sizes and all samples as they were is not seen: training changes nearly every byte.
    dtype, kv_dtype: what the weights and the KV pages are computed and kept in, resolved (never "auto").

    Raises FileNotFoundError when the folder lacks config.json or weights.
    """
    folder = Path(model_dir)
    digest = blake2b(FINGERPRINT_SCHEME, digest_size=16)
    for field in (dtype.encode(), kv_dtype.encode(), _config_bytes(folder)):
        _add(digest, field)
    for path in _weight_files(folder):
        _add(digest, path.relative_to(folder).as_posix().encode())
        _add_weight_file(digest, path)
    return digest.hexdigest()


def _add(digest: blake2b, data: bytes) -> None:
    """Length-prefixed, so that two different lists of fields never give equal bytes (C33)."""
    digest.update(struct.pack("<Q", len(data)))
    digest.update(data)


def _config_bytes(folder: Path) -> bytes:
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no config.json, so it is no transformers model folder")
    config = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in config.items() if key not in _IRRELEVANT_CONFIG_KEYS}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(p for p in folder.iterdir() if p.suffix in WEIGHT_SUFFIXES and p.is_file())
    safetensors = [p for p in files if p.suffix == ".safetensors"]
    files = safetensors or files  # transformers loads these alone where both kinds lie side by side
    if not files:
        raise FileNotFoundError(f"{folder} holds no weights (looked for {', '.join(sorted(WEIGHT_SUFFIXES))})")
    return files


def _add_weight_file(digest: blake2b, path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as file:
        header = _safetensors_header_bytes(path, file.read(8))
        file.seek(0)
        _add(digest, file.read(header))
        _add(digest, struct.pack("<Q", size))
        body = size - header
        if body <= SAMPLE_BYTES * SAMPLES_PER_FILE:
            _add(digest, file.read())
            return
        for index in range(SAMPLES_PER_FILE):
            file.seek(header + index * (body - SAMPLE_BYTES) // (SAMPLES_PER_FILE - 1))
            _add(digest, file.read(SAMPLE_BYTES))


def _safetensors_header_bytes(path: Path, start: bytes) -> int:
    """Length field plus JSON header; 0 for other formats and for a header that cannot be one."""
    if path.suffix != ".safetensors" or len(start) < 8:
        return 0
    length = int(struct.unpack("<Q", start)[0])
    return 8 + length if length <= MAX_HEADER_BYTES else 0

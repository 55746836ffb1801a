"""The identity of a model's weights, for the root of all block keys."""

import json
import logging
import os
import struct
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from cache.fingerprint_digests import Progress, file_digests
from cache.fingerprint_record import FileStamp, KeptDigest, read_record, write_record

FINGERPRINT_SCHEME = b"warmlane-model-2"
"""Changes with what is covered: processes of two schemes share neither block keys nor names in Redis."""
MAX_TRIES = 3

WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
# Written by the library that saved the folder, without any bearing on the numbers that a model computes.
_IRRELEVANT_CONFIG_KEYS = frozenset({"_name_or_path", "transformers_version"})

logger = logging.getLogger(__name__)


def model_fingerprint(
    model_dir: str | Path,
    dtype: str,
    kv_dtype: str,
    places: Sequence[Path] = (),
    progress: Progress | None = None,
) -> str:
    """32 hex digits that stand for what a model computes, equal in every process and wherever the folder lies.

    Covers config.json, both dtypes, and of every weight file its name, size and all bytes (C44): pages leave the
    process under keys that are made of it, so weights that differ anywhere must never share one.
    dtype, kv_dtype: what the weights and the KV pages are computed and kept in, resolved (never "auto").
    places: where the files' digests may be kept (`record_places`), so that the bytes are read once and not at each
    start; where none can be written, a warning says so. progress: told of bytes that are hashed now.

    Raises FileNotFoundError when the folder lacks config.json or weights, OSError where a file cannot be read or is
    written to all the while.
    """
    folder = Path(model_dir)
    digest = blake2b(FINGERPRINT_SCHEME, digest_size=16)
    for field in (dtype.encode(), kv_dtype.encode(), _config_bytes(folder)):
        _add(digest, field)
    for path, file_digest in _weight_digests(folder, places, progress).items():
        _add(digest, os.fsencode(path.name))
        _add(digest, bytes.fromhex(file_digest))
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


def _weight_digests(folder: Path, places: Sequence[Path], progress: Progress | None) -> dict[Path, str]:
    """The digest of each weight file: a kept one where the file has its stamp, else of all its bytes."""
    now_ns = time.time_ns()
    files = _weight_files(folder)
    records = [read_record(place) for place in places]
    found: dict[Path, KeptDigest] = {}
    for path in files:
        stamp = FileStamp.of(path)
        kept = (record.get(path.name) for record in records)
        same = next((each for each in kept if each is not None and each.stamp == stamp), None)
        if same is not None:
            found[path] = same
    new = _hashed([path for path in files if path not in found], progress)
    found |= new
    if new:
        _keep(folder, places, found, now_ns)
    return {path: found[path].digest for path in files}


def _hashed(paths: Sequence[Path], progress: Progress | None) -> dict[Path, KeptDigest]:
    """Raises OSError for a file that is written to at each try: its digest would be that of no weights."""
    found: dict[Path, KeptDigest] = {}
    for _ in range(MAX_TRIES):
        before = {path: FileStamp.of(path) for path in paths if path not in found}
        if not before:
            return found
        digests = file_digests({path: stamp.size for path, stamp in before.items()}, progress)
        found |= {
            path: KeptDigest(stamp, digests[path]) for path, stamp in before.items() if FileStamp.of(path) == stamp
        }
    for path in paths:
        if path not in found:
            raise OSError(f"{path} is being written to: try again when it is whole")
    return found


def _keep(folder: Path, places: Sequence[Path], found: Mapping[Path, KeptDigest], now_ns: int) -> None:
    """Writes the record to the first place that can be written, or warns that all is read again at each start.

    now_ns: before any byte was read. A file that had just been written then is left out; the next start keeps it.
    """
    told = {path: each for path, each in found.items() if not each.stamp.made_up(_is_read_only(path))}
    kept = {path.name: each for path, each in told.items() if each.stamp.settled(now_ns)}
    causes = [] if told else ["their file system cannot be written to and may be an image, whose times tell nothing"]
    if kept:
        for place in places:
            try:
                write_record(place, folder, kept)
                return
            except OSError as error:
                causes.append(str(error))
        causes = causes or ["no folder for it can be used"]
    if causes:
        logger.warning(
            "the digest of the weights in %s cannot be kept (%s): all bytes are read at each start",
            folder,
            "; ".join(causes),
        )


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)

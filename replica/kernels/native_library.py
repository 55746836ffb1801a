"""Compiles the C sources in csrc/ once per machine and loads them.

Optional: without a C compiler (GCC 9 or later, clang with its OpenMP) the engine runs on torch. The result lies in the
first of `cache_folders` that will do, and is named after all it depends on (sources, flags, compiler, this CPU's
features), so that a cache folder shared by different machines, or kept over an update, never gives foreign code.
"""

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from replica.cache_folders import cache_folders, usable
from replica.kernels import structs

logger = logging.getLogger(__name__)

_FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
_SOURCES = ("constants.c", "linear.c", "attention.c", "decoder.c")
_COMPILE_SECONDS = 120


class NativeUnavailable(RuntimeError):
    """Why there are no native kernels here."""


@functools.cache
def load_native() -> ctypes.CDLL:
    """The kernels' functions with their argument types set. Raises NativeUnavailable with the cause, each time."""
    if os.environ.get("WARMLANE_NATIVE_KERNELS", "1") == "0":
        raise NativeUnavailable("WARMLANE_NATIVE_KERNELS is 0")
    compilers = _compilers()
    sources = Path(str(resources.files("replica.kernels") / "csrc"))
    failures = []
    for compiler in compilers:
        try:
            name = f"kernels-{_identity(sources, compiler)}.so"
        except (OSError, subprocess.TimeoutExpired) as error:  # a file that is no program
            failures.append(f"{compiler[0]} does not run: {error}")
            continue
        targets = [folder / "native" / name for folder in cache_folders() if usable(folder)]
        if (library := _found(targets)) is not None:
            return library
        for target in targets:
            try:
                _compile(compiler, sources, target)
                return _declared(target)
            except NativeUnavailable as error:
                failures.append(str(error))
            except OSError as error:  # a full disk, a folder without the right to run what lies there
                failures.append(f"{target.parent}: {error}")
    raise NativeUnavailable("; ".join(dict.fromkeys(failures)) or f"none of {cache_folders()} can be written to")


def _compilers() -> list[list[str]]:
    """Commands to compile with: $CC alone where it is set ("ccache gcc" too), else all that are there.

    Raises NativeUnavailable where there is none.
    """
    try:
        given = shlex.split(os.environ.get("CC", ""))
    except ValueError as error:
        raise NativeUnavailable(f"CC cannot be read: {error}") from error
    if given:
        path = shutil.which(given[0])
        if path is None:
            raise NativeUnavailable(f"there is no C compiler {given[0]}, which CC names")
        return [[path, *given[1:]]]
    found = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    compilers = {os.path.realpath(path): [path] for path in found if path is not None}
    if not compilers:
        raise NativeUnavailable("there is no C compiler (cc, gcc or clang) on PATH")
    return list(compilers.values())


def _found(targets: Sequence[Path]) -> ctypes.CDLL | None:
    """What an earlier process compiled, from the first folder where it loads."""
    for target in targets:
        try:
            if target.exists():
                return _declared(target)
        except (OSError, AttributeError) as error:
            logger.warning("%s is not used: %s", target, error)
    return None


def _declared(target: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(target))
    structs.declare(library)
    return library


@functools.cache
def kernel_constants() -> dict[str, dict[str, int]]:
    """How the kernels cut their work (csrc/constants.h): of keys, rows, columns or floats -> name -> value.

    Raises NativeUnavailable.
    """
    library, found = load_native(), dict[str, dict[str, int]]()
    for index in itertools.count():
        pointer = library.kernel_constant(index)
        if not pointer:
            return found
        constant = pointer.contents
        found.setdefault(constant.of.decode(), {})[constant.name.decode()] = constant.value
    raise AssertionError("unreachable")


def native_unavailable_because() -> str | None:
    try:
        load_native()
    except NativeUnavailable as error:
        return str(error)
    return None


def _identity(sources: Path, compiler: list[str]) -> str:
    """Hash of all that decides what the compiler would write."""
    digest = hashlib.blake2b(digest_size=10)
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    command = [*compiler, "--version"]
    version = subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=False).stdout
    for part in (" ".join([*compiler[1:], *_FLAGS]).encode(), version, _cpu_features().encode()):
        digest.update(b"\0" + part)
    return digest.hexdigest()


def _cpu_features() -> str:
    """What -march=native looks at: the model and the instruction sets of this CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    found = {line.split(":")[0].strip(): line for line in lines if line.split(":")[0].strip() in wanted}
    return platform.machine() + "\n".join(found.values())


def _compile(compiler: list[str], sources: Path, target: Path) -> None:
    """Writes beside the target and renames, so that of several processes that start at once none loads half a file.

    Raises NativeUnavailable or OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / target.name
        command = [*compiler, *_FLAGS, *(str(sources / name) for name in _SOURCES), "-o", str(output), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise NativeUnavailable(f"{compiler[0]} took more than {_COMPILE_SECONDS} s") from error
        if done.returncode:
            raise NativeUnavailable(f"{compiler[0]} failed: {(done.stderr.strip().splitlines() or ['no output'])[0]}")
        if not output.is_file():
            raise NativeUnavailable(f"{shlex.join(compiler)} wrote no library")
        os.replace(output, target)
    logger.info("compiled the native kernels into %s", target)

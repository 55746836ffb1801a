"""Compiles the C sources in csrc/ once per machine and loads them.

Optional: without a C compiler the engine runs on torch alone. The result lies under $XDG_CACHE_HOME/warmlane/native and
is named after all it depends on (sources, flags, compiler, this CPU's features), so that a cache folder shared by
different machines, or kept over an update, never gives foreign code.
"""

import ctypes
import functools
import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

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
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NativeUnavailable("there is no C compiler (cc, gcc or clang) on PATH")
    sources = Path(str(resources.files("replica.kernels") / "csrc"))
    target = _cache_folder() / f"kernels-{_identity(sources, compiler)}.so"
    if not target.exists():
        _compile(compiler, sources, target)
    try:
        library = ctypes.CDLL(str(target))
    except OSError as error:
        raise NativeUnavailable(f"{target} cannot be loaded: {error}") from error
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


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "warmlane" / "native"


def _identity(sources: Path, compiler: str) -> str:
    """Hash of all that decides what the compiler would write."""
    digest = hashlib.blake2b(digest_size=10)
    for path in sorted(sources.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    for part in (" ".join(_FLAGS).encode(), version, _cpu_features().encode()):
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


def _compile(compiler: str, sources: Path, target: Path) -> None:
    """Writes beside the target and renames, so that of several processes that start at once none loads half a file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            output = Path(folder) / target.name
            command = [compiler, *_FLAGS, *(str(sources / name) for name in _SOURCES), "-o", str(output), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
            if done.returncode:
                raise NativeUnavailable(f"{compiler} failed: {(done.stderr.strip().splitlines() or ['no output'])[0]}")
            os.replace(output, target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"the kernels could not be compiled: {error}") from error
    logger.info("compiled the native kernels into %s", target)

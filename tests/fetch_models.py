"""Puts the real models that tests use into the cache folder, before the tests: `python -m tests.fetch_models`.

Without the default model the tests of it fail. Those of Gemma 3 270M are skipped where it cannot be fetched.
"""

import subprocess
import sys

from rich.console import Console

from cluster.models.store import resolve_model
from tests.replica.model.fetch_gemma import gemma_folder


def main() -> None:
    resolve_model(console=Console())
    if gemma_folder().is_dir():
        return
    print("Fetching Gemma 3 270M for its tests (242 MB, under Google's Gemma terms), once", flush=True)
    done = subprocess.run([sys.executable, "-m", "tests.replica.model.fetch_gemma"], capture_output=True, text=True)
    if done.returncode:
        cause = done.stderr.strip().splitlines()[-1:]
        print(f"It could not be fetched, so its tests are skipped: {''.join(cause)}", flush=True)


if __name__ == "__main__":
    main()

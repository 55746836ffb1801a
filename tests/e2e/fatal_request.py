"""The one size of request for which the cluster's policy raises; see `faults/sitecustomize.py`."""

from pathlib import Path

FATAL_PROMPT_TOKENS, FATAL_NEW_TOKENS = 61, 13
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parent / "faults"),
    "FATAL_REQUEST": f"{FATAL_PROMPT_TOKENS} {FATAL_NEW_TOKENS}",
}

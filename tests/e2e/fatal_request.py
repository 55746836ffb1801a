"""The one size of request for which the cluster's policy raises; see `faults/sitecustomize.py`."""

import os
from pathlib import Path

FATAL_PROMPT_TOKENS, FATAL_NEW_TOKENS = 61, 13
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent / "faults"), os.environ.get("PYTHONPATH")])),
    "FATAL_REQUEST": f"{FATAL_PROMPT_TOKENS} {FATAL_NEW_TOKENS}",
}

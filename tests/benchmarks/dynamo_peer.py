"""NVIDIA Dynamo's RadixTree, from PyPI, as the peer of our index mirror."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

from tests.benchmarks.peer_setup import PeerUnavailable, peers_folder

DYNAMO = "ai-dynamo-runtime==1.6.1"


def radix_tree_class() -> Any:
    """`dynamo._core.RadixTree`, its wheel unpacked in a folder of its own: none of its requirements is needed.

    Raises PeerUnavailable.
    """
    folder = peers_folder() / "dynamo"
    if not (folder / "dynamo").is_dir():
        wheels = folder / "wheels"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), DYNAMO]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerUnavailable(f"{DYNAMO} cannot be had: {(done.stderr.strip().splitlines() or [''])[-1]}")
        with zipfile.ZipFile(next(wheels.glob("*.whl"))) as archive:
            archive.extractall(folder)
    sys.path.append(str(folder))
    try:
        from dynamo._core import RadixTree
    except ImportError as error:
        raise PeerUnavailable(f"{DYNAMO} does not load here: {error}") from error
    return RadixTree


class DynamoTree:
    """A tree in which every worker holds the same blocks."""

    def __init__(self, num_workers: int, block_hashes: Sequence[int]):
        self._tree = radix_tree_class()()
        blocks = [{"block_hash": block, "tokens_hash": block} for block in block_hashes]
        event = {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": blocks}}}
        for worker in range(num_workers):
            self._tree.apply_event(worker, json.dumps(event).encode())

    def depths(self, block_hashes: list[int]) -> dict[Any, int]:
        """Worker -> how many leading blocks it holds."""
        scores: dict[Any, int] = self._tree.find_matches(block_hashes).scores
        return scores

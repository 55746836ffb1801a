"""What `warmlane serve` prints when it is ready can be pasted and works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient


@pytest.fixture
def printed(cluster: ClusterClient, cluster_process: ClusterProcess) -> str:
    """All that the command printed; the API may answer a moment before the last line stands there."""
    cluster.wait_until(lambda: "Ctrl-C stops everything." in cluster_process.output_tail(), "the last line is printed")
    return cluster_process.output_tail()


def test_the_curl_line_works_as_printed(printed: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = [line for line in printed.splitlines() if line.startswith("curl ")]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"role":"assistant"' in done.stdout.replace(" ", "")


def test_the_openai_snippet_works_as_printed(printed: str, tmp_path: Path) -> None:
    start = printed.index("from openai import OpenAI")
    snippet = printed[start : printed.index("\n\n", start)]
    path = tmp_path / "snippet.py"
    path.write_text(snippet)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_output_is_a_few_readable_lines(printed: str, cluster: ClusterClient) -> None:
    """Ray's and the libraries' noise is in the log file that is named here."""
    lines = printed.splitlines()
    assert len(lines) <= 25
    assert f"{cluster.base_url}/v1" in printed
    assert not [line for line in lines if "INFO" in line or "WARNING" in line]

"""What `warmlane serve` prints when it is ready can be pasted and works."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient


def test_the_curl_line_works_as_printed(cluster: ClusterClient, cluster_process: ClusterProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = [line for line in cluster_process.output_tail().splitlines() if line.startswith("curl ")]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"role":"assistant"' in done.stdout.replace(" ", "")


def test_the_openai_snippet_works_as_printed(
    cluster: ClusterClient, cluster_process: ClusterProcess, tmp_path: Path
) -> None:
    output = cluster_process.output_tail()
    start = output.index("from openai import OpenAI")
    snippet = output[start : output.index("\n\n", start)]
    path = tmp_path / "snippet.py"
    path.write_text(snippet)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_output_is_a_few_readable_lines(cluster_process: ClusterProcess, cluster: ClusterClient) -> None:
    """Ray's and the libraries' noise is in the log file that is named here."""
    lines = cluster_process.output_tail().splitlines()
    assert len(lines) <= 25
    assert f"{cluster.base_url}/v1" in cluster_process.output_tail()
    assert not [line for line in lines if "INFO" in line or "WARNING" in line]

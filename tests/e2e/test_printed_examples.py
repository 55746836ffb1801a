"""What `warmlane serve` prints when it is ready, and what the README shows, can be pasted and works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.lab.cluster_process import ClusterProcess
from tests.e2e.cluster_client import ClusterClient

EXAMPLES = {"curl": "curl -s", "python": "from openai import OpenAI"}
"""How each example of the README begins."""


@pytest.fixture
def printed(cluster: ClusterClient, cluster_process: ClusterProcess) -> str:
    """All that the command printed; the API may answer a moment before the last line stands there."""
    cluster.wait_until(lambda: "Ctrl-C stops everything." in cluster_process.output_tail(), "the last line is printed")
    return cluster_process.output_tail()


@pytest.fixture
def readme(cluster: ClusterClient) -> dict[str, str]:
    """The README's curl and Python examples by language, for this cluster's port."""
    text = Path("README.md").read_text(encoding="utf-8").replace("http://127.0.0.1:8000", cluster.base_url)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return {language: next(code for _, code in blocks if start in code) for language, start in EXAMPLES.items()}


def run_curl(command: str) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(" ", "")


def test_the_curl_line_works_as_printed(printed: str) -> None:
    (line,) = [line for line in printed.splitlines() if line.startswith("curl ")]
    assert '"role":"assistant"' in run_curl(line)


def test_the_readmes_curl_line_works(readme: dict[str, str]) -> None:
    """And answers sensibly: at temperature 0 even a small model knows this."""
    assert "Paris" in run_curl(readme["curl"])


def test_the_curl_line_of_the_apis_readme_works(cluster: ClusterClient) -> None:
    text = Path("cluster/api/README.md").read_text(encoding="utf-8").replace("http://127.0.0.1:8000", cluster.base_url)
    (command,) = re.findall(r"^```\n(curl .*?)^```", text, re.DOTALL | re.MULTILINE)
    assert '"caches":' in run_curl(command)


def test_the_readmes_snippet_works(readme: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "snippet.py"
    path.write_text(readme["python"])
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cached prompt tokens: " in done.stdout


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

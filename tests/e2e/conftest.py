"""One real cluster for the whole session: two replicas of the default model behind HAProxy, with its own Redis."""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.lab.cluster_process import ClusterProcess
from cluster.model_store import resolve_model
from tests.e2e import fatal_request
from tests.e2e.cluster_client import ClusterClient

# Few requests at once, so that a test can fill the engines and see others wait.
SERVE_ARGUMENTS = ("--replicas", "2", "--num-blocks", "1100", "--max-num-seqs", "4")
REPLICA_API_KEY = "a-key-of-this-test"
FIRST_VOCABULARY_ID = 100  # below are control tokens and single bytes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
    items.sort(key=lambda item: item.path.name == "test_stopping.py")  # it stops the cluster of all the others


@pytest.fixture(scope="session")
def model_dir() -> Path:
    return resolve_model()


@pytest.fixture(scope="session")
def cluster_process(
    request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterProcess]:
    """`warmlane serve` as a user starts it. Fails the session when stopping it leaves a process behind."""
    output_path = tmp_path_factory.mktemp("cluster") / "serve.log"
    environment = {**fatal_request.ENVIRONMENT, "WARMLANE_REPLICA_API_KEY": REPLICA_API_KEY}
    process = ClusterProcess(SERVE_ARGUMENTS, output_path=output_path, env=environment)
    try:
        process.start()
        process.wait_ready(timeout_seconds=240.0)
        yield process
        if request.session.testsfailed:
            keep_logs(process)
    finally:
        left = process.stop()
    assert left == [], "Ctrl-C left processes behind"


def keep_logs(process: ClusterProcess) -> None:
    """Copies the cluster's logs beside its output, in pytest's temporary folder, before the cluster removes them."""
    printed = re.search(r"log  (\S+)", process.output_tail())
    if printed is not None:
        folder = Path(printed[1]).parent
        if not folder.exists():  # the last test has stopped the cluster already
            return
        target = process.output_path.parent / "logs"
        shutil.copytree(folder / "ray/session_latest/logs/serve", target, ignore_dangling_symlinks=True)
        shutil.copy(printed[1], target)
        print(f"\nthe cluster's logs are in {target}")


@pytest.fixture(scope="session")
def live_cluster(cluster_process: ClusterProcess) -> ClusterClient:
    return ClusterClient(cluster_process.base_url)


@pytest.fixture
def cluster(live_cluster: ClusterClient) -> Iterator[ClusterClient]:
    """The cluster, idle and whole before each test and idle after it."""
    live_cluster.wait_until(lambda: len(live_cluster.replicas()) == 2, "both replicas answer", 120.0)
    live_cluster.wait_idle()
    yield live_cluster
    live_cluster.wait_idle()


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture
def unseen_prompt(request: pytest.FixtureRequest, tokenizer: Any) -> Callable[[int], list[int]]:
    """Makes prompts of token ids that no other test has sent; equal in each run."""
    rng = random.Random(request.node.nodeid)
    return lambda num_tokens: rng.choices(range(FIRST_VOCABULARY_ID, tokenizer.vocab_size), k=num_tokens)

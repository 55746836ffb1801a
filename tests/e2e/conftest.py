"""One real cluster for the whole session: two replicas of the default model behind HAProxy, with its own Redis."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.lab.cluster_process import ClusterProcess
from cluster.models.store import resolve_model
from tests.e2e import fatal_request
from tests.e2e.cluster_client import ClusterClient
from tests.e2e.running_cluster import run_folder, running_cluster

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
    """Fails the session when stopping it leaves a process behind."""

    def keep_logs_of_failures(process: ClusterProcess) -> None:
        if request.session.testsfailed:
            keep_logs(process)

    environment = {**fatal_request.ENVIRONMENT, "WARMLANE_REPLICA_API_KEY": REPLICA_API_KEY}
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(SERVE_ARGUMENTS, folder, env=environment, before_stop=keep_logs_of_failures) as process:
        yield process


def keep_logs(process: ClusterProcess) -> None:
    """Copies the cluster's logs beside its output, in pytest's temporary folder, before the cluster removes them."""
    folder = run_folder(process)
    if folder is None or not folder.exists():  # the last test has stopped the cluster already
        return
    target = process.output_path.parent / "logs"
    shutil.copytree(folder / "ray/session_latest/logs/serve", target, ignore_dangling_symlinks=True)
    shutil.copy(folder / "cluster.log", target)
    print(f"\nthe cluster's logs are in {target}")


@pytest.fixture(scope="session")
def live_cluster(cluster_process: ClusterProcess) -> ClusterClient:
    return ClusterClient(cluster_process.base_url)


@pytest.fixture
def cluster(live_cluster: ClusterClient) -> Iterator[ClusterClient]:
    """The cluster, idle and whole before each test and idle after it."""
    live_cluster.wait_until(lambda: len(live_cluster.replicas()) == 2, "both replicas answer")
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

"""Settings of all engine tests."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models are faster on one thread, and the rest of the machine is left to what runs beside the tests."""
    torch.set_num_threads(1)

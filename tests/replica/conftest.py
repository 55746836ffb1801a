"""Settings of all engine tests."""

import pytest
import torch

from tests.waiting import BOUND_SECONDS


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Tiny models are faster on one thread, and the rest of the machine is left to what runs beside the tests."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def patient_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts take so little to compute that a load would be late where its thread waits for a core."""
    monkeypatch.setattr("replica.engine.loads.LEAST_SECONDS", BOUND_SECONDS)

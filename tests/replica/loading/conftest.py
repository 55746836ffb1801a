"""Loads that no busy machine makes late."""

import pytest

from tests.waiting import BOUND_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts take so little to compute that a load would be late where threads wait for a core."""
    monkeypatch.setattr("replica.engine.loads.LEAST_SECONDS", BOUND_SECONDS)

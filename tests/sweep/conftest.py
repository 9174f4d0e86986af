"""What all tests of sweeps need."""

from collections.abc import Iterator

import pytest

from calprompt.sweep import work


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """What a worker keeps for the next task is nothing to the next test."""
    work._loaded.clear()
    yield
    work._loaded.clear()

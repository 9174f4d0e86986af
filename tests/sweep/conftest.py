"""What all tests of sweeps need."""

from collections.abc import Iterator

import pytest

from calprompt.runs import resources


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """What a worker keeps for the next task is nothing to the next test."""
    resources._of_group.clear()
    yield
    resources._of_group.clear()

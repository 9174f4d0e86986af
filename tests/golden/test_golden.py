"""Every entry of a golden folder's manifest, against this package.

    pytest tests/golden --golden-dir DIR

An entry that is not known fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import cases, standalone
from golden.harness import Golden, manifest
from golden.methods import METHODS

UNUSED_HELPERS = {  # parts of entries: functions of the public code that nothing there calls
    "regularizers": ("inter_class_margin_variance/", "margin_band/", "pairwise_", "text_nce_align"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    entries = manifest(metafunc.config.getoption("golden_dir"))
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", entries["cases"], ids=lambda case: case["name"])
    if "piece" in metafunc.fixturenames:
        metafunc.parametrize("piece", entries["standalone"], ids=lambda piece: piece["name"])


@pytest.fixture
def directory(request: pytest.FixtureRequest) -> Path:
    return request.config.getoption("golden_dir")


def test_case(case: dict, directory: Path) -> None:
    assert case["method"] in METHODS, f"{case['name']}: unknown method {case['method']!r}"
    cases.check_case(Golden(directory, case), directory)


def test_piece(piece: dict, directory: Path) -> None:
    assert piece["name"] in standalone.CHECKS, f"unknown entry {piece['name']!r}"
    golden = Golden(directory, piece)
    standalone.CHECKS[piece["name"]](golden, directory)
    for name in golden.tensors:
        if name.startswith(UNUSED_HELPERS.get(piece["name"], ())):
            golden.ignore(name)
    golden.finish()

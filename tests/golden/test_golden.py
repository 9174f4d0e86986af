"""Every entry of a golden folder's manifest, against this package.

    pytest tests/golden --golden-dir DIR

An entry that is neither known nor pending fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from golden import cases, standalone
from golden.harness import Golden, manifest
from golden.methods import METHODS

PENDING_METHODS: set[str] = set()
PENDING_STANDALONE = {"dac", "temperature_scaling"}
PENDING_PARTS = {  # of entries that are checked otherwise
    "regularizers": (
        "inter_class_margin_variance/",
        "l1_text_mean/",
        "l2_text_mean/",
        "margin_band/",
        "mbls_baseline_",
        "pairwise_",
        "penalty_baseline_",
        "prograd_kl/",
        "text_nce_align",
        "zsnorm_baseline_",
    ),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    entries = manifest(metafunc.config.getoption("golden_dir"))
    if "case" in metafunc.fixturenames:
        known = [case for case in entries["cases"] if case["method"] not in PENDING_METHODS]
        metafunc.parametrize("case", known, ids=lambda case: case["name"])
    if "piece" in metafunc.fixturenames:
        known = [piece for piece in entries["standalone"] if piece["name"] not in PENDING_STANDALONE]
        metafunc.parametrize("piece", known, ids=lambda piece: piece["name"])


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
        if name.startswith(PENDING_PARTS.get(piece["name"], ())):
            golden.ignore(name)
    golden.finish()

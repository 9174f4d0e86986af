"""Options and settings of the whole suite."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # tiny models: threads only cost
settings.register_profile("calprompt", deadline=None, derandomize=True)
settings.load_profile("calprompt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=Path(__file__).parent / "golden" / "data",
        help="folder of golden cases with a manifest.json (default: the one in the repository)",
    )

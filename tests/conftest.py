"""Options and settings of the whole suite."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(int(os.environ.get("CALPROMPT_TEST_THREADS", "1")))  # tiny models: threads only cost
os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))  # it would wait for others, which a copy has not
os.environ["CALPROMPT_CACHE"] = tempfile.mkdtemp(prefix="calprompt-cache-")  # the user's own is left alone
atexit.register(shutil.rmtree, os.environ["CALPROMPT_CACHE"], ignore_errors=True)
settings.register_profile("calprompt", deadline=None, derandomize=True)
settings.load_profile("calprompt")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=Path(__file__).parent / "golden" / "data",
        help="folder of golden cases with a manifest.json (default: the one in the repository)",
    )

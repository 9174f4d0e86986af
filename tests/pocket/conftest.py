"""The modules of experiments that tests of the pocket import by name."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments"))
    for name in ("paired", "paired_tables", "paired_figures"):
        importlib.import_module(name)

"""Runs, predictions, evaluations, fits and sweeps on a device that is not the CPU, without one: see `stand_in`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calprompt import tuners

ROUNDING = 3e-5  # of probabilities and losses in float32, whose products other kernels add up in other orders
HALF_ROUNDING = 0.05  # after training in half precision
PATHS = (
    "predict",
    "predict, trained on the CPU",
    "predict pixels, as a server does",
    "evaluate",
    "transfer",
    "sweep worker",
    "fit and answer",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `stand_in_matrix` found, in a process of its own: a device stays registered."""
    script = Path(__file__).with_name("stand_in_matrix.py")
    environment = os.environ | {"CALPROMPT_CACHE": str(tmp_path_factory.mktemp("cache"))}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_runs_of_all_tuners_agree_with_the_cpu(found: dict[str, Any]) -> None:
    gaps = {name: found["gaps"][f"run {name}"] for name in tuners.available()}
    assert {name: gap for name, gap in gaps.items() if not (isinstance(gap, float) and gap <= ROUNDING)} == {}


def test_runs_in_half_precision_agree_with_the_cpu(found: dict[str, Any]) -> None:
    gaps = {f"{name} {dtype}": 0.0 for name in ("coop", "maple") for dtype in ("float16", "bfloat16")}
    gaps = {name: found["gaps"][f"run {name}"] for name in gaps}
    assert {name: gap for name, gap in gaps.items() if not (isinstance(gap, float) and gap <= HALF_ROUNDING)} == {}


def test_everything_after_training_agrees_with_the_cpu(found: dict[str, Any]) -> None:
    gaps = {path: found["gaps"][path] for path in PATHS}
    assert {path: gap for path, gap in gaps.items() if not (isinstance(gap, float) and gap <= ROUNDING)} == {}


def test_no_training_step_waits_for_the_device(found: dict[str, Any]) -> None:
    trained = {name for name in tuners.available() if tuners.get(name).learns} - {"tip-adapter"}  # it has no steps
    assert {name: found["waits"][name] for name in trained} == dict.fromkeys(trained, 0)


def test_broken_tuners_are_caught(found: dict[str, Any]) -> None:
    assert "mixes tensors of cpu and standin" in found["gaps"]["run from-the-host"]
    assert found["waits"]["waits"] > 0

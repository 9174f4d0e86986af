"""Ratios of speed beside the committed ones: what counts as slower, and, in the long tests, that nothing is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ratios
from benchmarks.ratios import Pair


def timed(*seconds: float) -> object:
    """A way that takes so long, call by call, and then as long as the last time."""
    left = list(seconds)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_a_ratio_that_fell_twice_counts_as_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Pair("same", timed(2.0), timed(1.0)), Pair("fell", timed(2.0), timed(1.5))]
    found += [Pair("disturbed", timed(2.0), timed(*[5.0] * 3, 1.0)), Pair("new", timed(3.0), timed(1.0))]
    monkeypatch.setattr(ratios, "pairs", lambda *_: [(pair, 2) for pair in found])
    monkeypatch.setattr(ratios, "COMMITTED", tmp_path / "ratios.json")
    ratios.COMMITTED.write_text(json.dumps({"same": 2.0, "fell": 2.0, "disturbed": 2.0}))
    measured, slower = ratios.compare()
    assert measured == pytest.approx({"same": 2.0, "fell": 4 / 3, "disturbed": 2.0, "new": 3.0})
    assert slower == ["fell: 1.33x, committed 2.00x"]
    assert "-33 %" in capsys.readouterr().out


@pytest.mark.long
def test_nothing_got_slower_than_the_committed_ratios() -> None:
    """Two minutes of a process of its own, with one thread as the committed ones were measured."""
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "benchmarks.ratios"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

"""Sweeps of tiny runs for tests, in files and in commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

import samples

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TINY: dict[str, Any] = {"shots": 4, "views": 2, "batch_size": 8, "epochs": 3, "lr": 0.01, "options.context": 2}


def content(**changes: Any) -> dict[str, Any]:
    """Two losses and two seeds of CoOp on a file of features; `settings` are added to the usual ones."""
    settings = {"backbone": str(samples.backbone()), "data": str(samples.feature_file()), **TINY}
    settings |= changes.pop("settings", {})
    for name in changes.get("axes", {}):
        settings.pop(name, None)
    whole = {"settings": settings, "axes": {"loss": ["ce", "tcpt"]}, "seeds": [1, 2], "calibrators": ["temperature"]}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


def write(path: Path, **changes: Any) -> Path:
    """A sweep file of `content`."""
    path.write_text(yaml.safe_dump(content(**changes), sort_keys=False), encoding="utf-8")
    return path


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "calprompt", *map(str, words)]


def call(*words: Any, expected: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(*words), env=ENVIRONMENT, capture_output=True, text=True)
    assert expected is None or done.returncode == expected, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def table(out: Path) -> bytes:
    """The table of a folder without times, made in this process."""
    from calprompt.results.collecting import results

    return results(out).to_csv(times=False)


class Here:
    """An executor that does everything in this process, one after another."""

    def map(self, groups: Any, work: Any) -> Any:
        for group in groups:
            for task in group:
                yield work(task)

"""Rows of results for tests of tables: every run of a sweep, with metrics that follow from its settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from calprompt.results.collecting import setting_columns
from calprompt.results.table import Table
from calprompt.sweep.expansion import Cell
from calprompt.sweep.sweep_file import Sweep, read_sweep

METRICS = ("accuracy", "ece", "ace", "mce", "weighted_mce", "nll", "mean_confidence")
TIMES = ("seconds_step", "seconds_epoch", "cpu_seconds_train", "peak_memory_train")
Metric = Callable[[Mapping[str, Any], str], float | None]


def chance(row: Mapping[str, Any], metric: str) -> float:
    """A number in [0.1, 0.9) that depends on everything that a result depends on; zero-shot not on tuner and seed."""
    names = ("model", "calibrator", "split", "dataset", "backbone")
    more = ("tuner", "loss", "seed", "shots") if row["model"] == "tuned" else ()
    text = repr([metric, *(row.get(name) for name in (*names, *more))])
    return 0.1 + 0.8 * int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8


def sweep_rows(sweep: Sweep, metric: Metric = chance, cells: Iterable[Cell] | None = None) -> Table:
    """Results of all runs of a sweep, or of some."""
    return Table(tuple(row for cell in cells or sweep.cells for row in _run_rows(sweep, cell, metric)), sweep.name)


def write_rows(path: Path, name: str, metric: Metric = chance) -> Path:
    """The results of a sweep of the package as a file."""
    path.write_bytes(sweep_rows(read_sweep(name), metric).to_csv())
    return path


def _run_rows(sweep: Sweep, cell: Cell, metric: Metric) -> Iterator[dict[str, Any]]:
    settings = setting_columns(cell.record)
    parts = ("all",) if settings["protocol"] == "few-shot" else ("base", "novel")
    splits = [*parts, *(f"{target.name}/{part}" for target in sweep.transfer for part in parts)]
    for model in ("tuned", "zero-shot"):
        for calibrator in ("none", *sweep.calibrators):
            for split in splits:
                row = {
                    "run": f"{cell.key}",
                    "fingerprint": cell.key * 4,
                    "status": "finished",
                    "dataset": str(settings["data"]),
                    "model": model,
                    "calibrator": calibrator,
                    "split": split,
                    "images": 100,
                    "classes": 5,
                    **settings,
                    **dict.fromkeys(TIMES, 1.5),
                }
                yield row | {name: metric(row, name) for name in METRICS}

"""Evaluations as data: tidy rows, and a JSON or CSV file of them.

A row is one number: run, model (tuned or zero-shot), split, calibrator, metric, value, low, high, n. Values are
fractions; low and high are the ends of the 95 % interval, empty where there is none; n is the number of images. A JSON
file also holds the settings, the versions, what calibrators promise and learned, thresholds, and why a row is missing.
"""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.errors import CalpromptError
from calprompt.evaluation.run_evaluation import Calibrated, Evaluation
from calprompt.extensions import load_extension
from calprompt.files import locked, write_bytes, write_json
from calprompt.runs.folder import EVALUATION, write_evaluation

COLUMNS = ("run", "model", "split", "calibrator", "metric", "value", "low", "high", "n")
SUFFIXES = (".json", ".csv")


def tidy_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """One row a number, in the order of `COLUMNS`."""
    names = run_names(evaluations)
    rows = (
        (name, each.model, split, each.calibrator, *row)
        for name, evaluation in zip(names, evaluations, strict=True)
        for each in evaluation.calibrated
        for split, *row in _numbers(evaluation, each)
    )
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def _numbers(evaluation: Evaluation, each: Calibrated) -> Iterator[tuple[Any, ...]]:
    """Split, metric, value, low, high, n of one calibrator."""
    for split, values in each.values.items():
        for metric, measured in values.items():
            yield split, metric, measured.value, measured.low, measured.high, evaluation.sizes[split][0]
    if each.selection is None:
        return
    for split, found in each.selection.accepted.items():
        if split == "val":
            yield split, "threshold", each.selection.threshold, None, None, found.images
        yield split, "coverage_at_threshold", found.coverage, None, None, found.images
        if found.error is not None:
            yield split, "error_at_threshold", found.error, None, None, found.accepted


def evaluation_record(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Everything about evaluations of the same settings, as plain data."""
    settings = evaluations[0].settings
    names = run_names(evaluations)
    return {
        "settings": asdict(settings)
        | {
            "calibrators": list(settings.specs),
            "imports": {path: load_extension(path) for path in settings.imports},
            "interval": "95 % percentile bootstrap over images" if settings.bootstrap else None,
        },
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "runs": [_run(name, each) for name, each in zip(names, evaluations, strict=True)],
        "rows": tidy_rows(evaluations),
    }


def _run(name: str, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "run": name,
        "fingerprint": evaluation.run.record.get("fingerprint"),
        "splits": {split: {"images": n, "classes": C} for split, (n, C) in evaluation.sizes.items()},
        "val_images": evaluation.val_images,
        "calibrators": [
            {
                "model": each.model,
                "calibrator": each.calibrator,
                "keeps_argmax": each.keeps_argmax,
                "novel": each.novel,
                "state": each.state,
                "not_applicable": each.reasons,
                "selection": None if each.selection is None else asdict(each.selection),
            }
            for each in evaluation.calibrated
        ],
    }


def run_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Names of the folders, or the whole paths if two have the same name."""
    folders = [evaluation.run.folder.resolve() for evaluation in evaluations]
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def check_output(path: str | Path) -> Path:
    """Where to write: a .json or .csv file in a folder that is there, or can be made."""
    path = Path(path).expanduser()
    if path.suffix not in SUFFIXES:
        raise CalpromptError(f"evaluations are written as {' or '.join(SUFFIXES)}, got {path.name!r}")
    if path.is_dir():
        raise CalpromptError(f"{path} is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write_evaluations(evaluations: Sequence[Evaluation], path: str | Path | None = None) -> list[Path]:
    """Write one file of all of them, or evaluation.json into the folder of each; returns what was written."""
    if path is not None:
        path = check_output(path)
        if path.suffix == ".csv":
            write_bytes(path, _csv(tidy_rows(evaluations)))
        else:
            write_json(path, evaluation_record(evaluations))
        return [path]
    paths = []
    for evaluation in evaluations:
        folder = evaluation.run.folder
        try:
            with locked(folder):
                paths.append(write_evaluation(folder, evaluation_record([evaluation])))
        except OSError as error:
            raise CalpromptError(
                f"cannot write {folder / EVALUATION}: {error.strerror or error}; write elsewhere with out=FILE"
            ) from error
    return paths


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()

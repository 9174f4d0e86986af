"""Evaluations as data: tidy rows, and a JSON or CSV file of them.

A row is one number: run, model (tuned or zero-shot), split, calibrator, metric, value, low, high, n. Values are
fractions; low and high are the ends of the 95 % interval, empty where there is none; n is the number of images. With
intervals there are also ece_debiased and ace_debiased, which have one, and ece_p_value and ace_p_value, the tests of
calibration. If some run was validated on test images, there is a note, which says so of its rows. A JSON file also has
the settings, the versions, what calibrators promise and learned, thresholds, and why a row is missing.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.data.splits import OWN
from calprompt.errors import CalpromptError, Parameter
from calprompt.evaluation.run_evaluation import Calibrated, Evaluation
from calprompt.files import check_output, csv_bytes, json_bytes, locked, write_output
from calprompt.registry import load_extension
from calprompt.runs.folder import EVALUATION, write_evaluation

COLUMNS = ("run", "model", "split", "calibrator", "metric", "value", "low", "high", "n")
NOTE = "note"  # one more column, if any run has one
SUFFIXES = (".json", ".csv")
INTERVAL = "95 % over images: percentile bootstrap; Wilson's of the accuracy; inverted tests of debiased ECE and ACE"


def tidy_rows(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """One row per number, in the order of `COLUMNS`; with a note, if a run has one."""
    names = run_names(evaluations)
    noted = any(evaluation.run.note for evaluation in evaluations)
    rows = (
        (name, calibrated.model, split, calibrated.calibrator, *row, *([evaluation.run.note] if noted else []))
        for name, evaluation in zip(names, evaluations, strict=True)
        for calibrated in evaluation.calibrated
        for split, *row in _numbers(evaluation, calibrated)
    )
    columns = (*COLUMNS, NOTE) if noted else COLUMNS
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _numbers(evaluation: Evaluation, calibrated: Calibrated) -> Iterator[tuple[Any, ...]]:
    """Split, metric, value, low, high, n of one calibrator."""
    for split, values in calibrated.values.items():
        for metric, measured in values.items():
            yield split, metric, measured.value, measured.low, measured.high, evaluation.sizes[split][0]
    if calibrated.selection is None:
        return
    for split, outcome in calibrated.selection.accepted.items():
        if split == "val":
            yield split, "threshold", calibrated.selection.threshold, None, None, outcome.images
        yield split, "coverage_at_threshold", outcome.coverage, None, None, outcome.images
        if outcome.error is not None:
            yield split, "error_at_threshold", outcome.error, None, None, outcome.accepted


def evaluation_record(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Everything about evaluations with the same settings, as plain data."""
    settings = evaluations[0].settings
    names = run_names(evaluations)
    return {
        "settings": asdict(settings)
        | {
            "calibrators": list(settings.specs),
            "imports": {path: load_extension(path) for path in settings.imports},
            "interval": INTERVAL if settings.bootstrap else None,
        },
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "runs": [_run(name, evaluation) for name, evaluation in zip(names, evaluations, strict=True)],
        "rows": tidy_rows(evaluations),
    }


def _run(name: str, evaluation: Evaluation) -> dict[str, Any]:
    return {
        "run": name,
        "fingerprint": evaluation.run.record.get("fingerprint"),
        "logits": evaluation.run.logits_digests,
        "splits": {split: {"images": n, "classes": C} for split, (n, C) in evaluation.sizes.items()},
        "val_images": evaluation.val_images,
        "validation": evaluation.run.record["config"].get("validation", OWN),
        "note": evaluation.run.note,
        "calibrators": [
            {
                "model": calibrated.model,
                "calibrator": calibrated.calibrator,
                "keeps_argmax": calibrated.keeps_argmax,
                "novel": calibrated.novel,
                "state": calibrated.state,
                "not_applicable": calibrated.reasons,
                "selection": None if calibrated.selection is None else asdict(calibrated.selection),
            }
            for calibrated in evaluation.calibrated
        ],
    }


def run_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """Names of the folders, or the whole paths if two have the same name."""
    folders = [evaluation.run.folder.resolve() for evaluation in evaluations]
    names = [folder.name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def write_evaluations(evaluations: Sequence[Evaluation], path: str | Path | None = None) -> list[Path]:
    """Write evaluations to files.

    Args:
        evaluations: All with the same settings.
        path: A .json or .csv file for all of them; evaluation.json in the folder of each run, unless given.

    Returns:
        The paths of the files.

    Raises:
        CalpromptError: if a run folder cannot be written to.
    """
    if path is not None:
        path = check_output(path, SUFFIXES, parameter="out")
        if path.suffix == ".csv":
            rows = tidy_rows(evaluations)
            write_output(path, csv_bytes(list(rows[0]) if rows else COLUMNS, rows))
        else:
            write_output(path, json_bytes(evaluation_record(evaluations)))
        return [path]
    paths = []
    for evaluation in evaluations:
        folder = evaluation.run.folder
        try:
            with locked(folder):
                paths.append(write_evaluation(folder, evaluation_record([evaluation])))
        except OSError as error:
            raise CalpromptError(
                f"cannot write {folder / EVALUATION}: {error.strerror or error}; write elsewhere with ",
                Parameter("out", "FILE"),
            ) from error
    return paths

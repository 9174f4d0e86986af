"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, from base to novel classes, over several seeds.

    <out>/runs/                       the runs, as `calprompt train` leaves them
          table.csv, table.json       the numbers
          reliability-<dataset>.png   confidence against accuracy

Runs that are there are not computed again, and one that was stopped goes on where it was.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.demo.settings import DemoSettings
from calprompt.errors import SettingError
from calprompt.evaluation.models import TUNED, ZERO_SHOT, stored_models
from calprompt.features import FeatureStore
from calprompt.metrics import Predictions, predictions
from calprompt.progress import Progress, silent
from calprompt.report.comparison import Row, compare
from calprompt.report.comparison_file import Results
from calprompt.report.reliability import reliability_figure, runs_panel, save_figure
from calprompt.runs import Resources, Run, run
from calprompt.text import slug

METHODS = {"CoOp": "ce", "CoOp + TCPT": "tcpt"}  # and their losses; all else is the same
UNTUNED = "zero-shot"
DIFFERENCES = (("CoOp + TCPT", "CoOp"),)
SPLITS = ("base", "novel")


@dataclass(frozen=True)
class Demo:
    """The results, how many runs had to be computed, and the files that were written."""

    results: Results
    computed: int
    files: tuple[Path, ...]


def run_demo(
    settings: DemoSettings, out: str | Path, *, store: FeatureStore | None = None, progress: Progress = silent
) -> Demo:
    """Run what is not done yet, then write numbers and figures into `out`.

    Args:
        settings: What is compared.
        out: Folder of the runs, numbers and figures.
        store: Where image features are kept on disk, so that they are computed once.
        progress: Shows how far it is.
    """
    out = Path(out).expanduser()
    resources = Resources(store=store)
    names = _names(settings, resources, progress)
    planned = [(name, seed, method) for name in names for seed in range(1, settings.seeds + 1) for method in METHODS]
    runs: dict[str, dict[str, list[Run]]] = {name: {method: [] for method in METHODS} for name in names}
    for done, (name, seed, method) in enumerate(planned):
        progress("runs", done, len(planned), f"{name}, seed {seed}, {method}")
        config = settings.config(names[name], METHODS[method], seed)
        runs[name][method].append(run(config, out / "runs", resources=resources, progress=progress))
    progress("runs", len(planned), len(planned), "")
    rows, files = list[Row](), []
    for done, (name, held) in enumerate(runs.items()):
        progress("tables and figures", done, len(runs), name)
        methods = stored_predictions(held)
        rows += compare(name, methods, differences=DIFFERENCES, n_bins=settings.bins, resamples=settings.resamples)
        panels = {
            split: {method: runs_panel(parts[split], n_bins=settings.bins) for method, parts in methods.items()}
            for split in SPLITS
        }
        files.append(save_figure(reliability_figure(panels, name), out / f"reliability-{slug(name)}.png"))
    progress("tables and figures", len(runs), len(runs), "")
    every = [each for held in runs.values() for of_method in held.values() for each in of_method]
    sizes = {name: _sizes(next(iter(held.values()))[0]) for name, held in runs.items()}
    results = Results(settings.record(), sizes, tuple(rows), _about(every[0]))
    results.write_csv(out / "table.csv")
    results.write_json(out / "table.json")
    computed = sum(not each.reused for each in every)
    return Demo(results, computed, (out / "table.csv", out / "table.json", *files))


def stored_predictions(runs: Mapping[str, list[Run]]) -> dict[str, dict[str, list[Predictions]]]:
    """Predictions on base and novel test images from the runs' logits: of the untuned model, then of every method."""
    models = {method: [stored_models(each) for each in held] for method, held in runs.items()}
    first = next(iter(models.values()))[0]
    chosen = {UNTUNED: [first[ZERO_SHOT]]} | {method: [each[TUNED] for each in held] for method, held in models.items()}
    return {
        method: {
            split: [predictions(each.tests[split].logits, each.tests[split].labels, from_logits=True) for each in held]
            for split in SPLITS
        }
        for method, held in chosen.items()
    }


def _names(settings: DemoSettings, resources: Resources, progress: Progress) -> dict[str, str]:
    """What the datasets are called, each its own way, and where they are; pictures of the package are made here."""
    names: dict[str, str] = {}
    for done, data in enumerate(settings.data):
        progress("datasets", done, len(settings.data), data)
        config = settings.config(data, "ce", 1)
        name = resources.dataset(data, root=config.root, classes=config.classes, base=config.base).name
        for other, place in names.items():
            if slug(other) == slug(name):
                raise SettingError(f"{place} and {data} are both called {name}; rename one")
        names[name] = data
    progress("datasets", len(settings.data), len(settings.data), "")
    return names


def _sizes(one: Run) -> dict[str, dict[str, int]]:
    return {split: {count: one.metrics[split][count] for count in ("images", "classes")} for split in SPLITS}


def _about(one: Run) -> dict[str, Any]:
    return {
        "weights": one.record["backbone"]["fingerprint"],
        "calprompt": calprompt.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, from base to novel classes, over several seeds.

    <out>/runs/                       the runs, as `calprompt train` leaves them
          table.csv, table.json       the numbers
          reliability-<dataset>.png   confidence against accuracy

Runs that are there are not computed again, and one that was stopped goes on where it was.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.data import load_dataset
from calprompt.data.features import Progress, silent
from calprompt.data.store import FeatureStore
from calprompt.errors import CalpromptError
from calprompt.evaluation.stored_run import TUNED, ZERO_SHOT, stored_models
from calprompt.metrics import Predictions, predictions
from calprompt.options import check_types
from calprompt.report.comparison import Row, compare
from calprompt.report.reliability import reliability_figure, runs_panel, save_figure
from calprompt.report.results import Results
from calprompt.runs import Run, RunConfig, run
from calprompt.runs.recipes import build_config, read_recipe

DATA = ("pocket_signs", "pocket_photos")
METHODS = {"CoOp": "ce", "CoOp + TCPT": "tcpt"}  # and their losses; all else is the same
UNTUNED = "zero-shot"
DIFFERENCES = (("CoOp + TCPT", "CoOp"),)
SPLITS = ("base", "novel")


@dataclass(frozen=True)
class DemoSettings:
    """What is compared; checked when it is made.

    data                  datasets, as `load_dataset` takes them
    seeds                 how many, counted from 1
    epochs                None: the recipe's
    recipe                of CoOp; the loss is that of each method
    bins, resamples       of the calibration errors, and of the intervals
    """

    data: tuple[str, ...] = DATA
    seeds: int = 3
    epochs: int | None = None
    backbone: str = "pocket"
    recipe: str = "coop-pocket"
    bins: int = 10
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_types("setting", type(self).__init__, vars(self))
        for name in ("seeds", "resamples"):
            if getattr(self, name) < 1:
                raise CalpromptError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.data or len(set(self.data)) < len(self.data):
            raise CalpromptError(f"data must be datasets, each once; got {', '.join(self.data) or 'none'}")

    def config(self, data: str, loss: str, seed: int) -> RunConfig:
        """The settings of one run."""
        said: dict[str, Any] = {"data": data, "loss": loss, "seed": seed, "backbone": self.backbone}
        if self.epochs is not None:
            said["epochs"] = self.epochs
        return build_config(**{**read_recipe(self.recipe)[1], **said})

    def record(self) -> dict[str, Any]:
        """As plain data, with the epochs that the recipe says."""
        epochs = self.config(self.data[0], "ce", 1).training.epochs
        return {**asdict(self), "data": list(self.data), "epochs": epochs}


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

    store     where image features are kept, so that they are computed once for all runs
    progress  told what is being done, how much of it is done, of how much, and a word on how it goes
    """
    out = Path(out).expanduser()
    names = _names(settings, progress)
    planned = [(name, seed, method) for name in names for seed in range(1, settings.seeds + 1) for method in METHODS]
    runs: dict[str, dict[str, list[Run]]] = {name: {method: [] for method in METHODS} for name in names}
    for done, (name, seed, method) in enumerate(planned):
        progress("runs", done, len(planned), f"{name}, seed {seed}, {method}")
        config = settings.config(names[name], METHODS[method], seed)
        runs[name][method].append(run(config, out / "runs", store=store, progress=progress))
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
        files.append(save_figure(reliability_figure(panels, name), out / f"reliability-{_slug(name)}.png"))
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


def _names(settings: DemoSettings, progress: Progress) -> dict[str, str]:
    """What the datasets are called, each its own way, and where they are; pictures of the package are made here."""
    names: dict[str, str] = {}
    for done, data in enumerate(settings.data):
        progress("datasets", done, len(settings.data), data)
        config = settings.config(data, "ce", 1)
        name = load_dataset(data, root=config.root, classes=config.classes, base=config.base).name
        for other, place in names.items():
            if _slug(other) == _slug(name):
                raise CalpromptError(f"{place} and {data} are both called {name}; rename one")
        names[name] = data
    progress("datasets", len(settings.data), len(settings.data), "")
    return names


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)


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

"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, from base to novel classes, over several seeds.

    <out>/runs/                       the runs, as `calprompt train` writes them
          table.csv, table.json       the numbers
          reliability-<dataset>.png   confidence against accuracy
          report.html                 all of it on one page, with mistakes and thresholds

Finished runs are not computed again, and one that was interrupted continues.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.demo.settings import DemoSettings
from calprompt.errors import SettingError
from calprompt.evaluation.models import TUNED, ZERO_SHOT, StoredRun
from calprompt.features.store import FeatureStore
from calprompt.metrics import Predictions
from calprompt.progress import Progress, silent
from calprompt.report.page.build import build_report
from calprompt.report.page.document import Report, ReportSettings
from calprompt.report.page.render import write_report
from calprompt.report.reliability import reliability_figure, runs_panel, save_figure
from calprompt.results.comparison import Results, Row, compare
from calprompt.results.sources import read_source
from calprompt.runs.execute import run
from calprompt.runs.folder import Run
from calprompt.runs.resources import Resources
from calprompt.text import plural, slug

METHODS = {"CoOp": "ce", "CoOp + TCPT": "tcpt"}  # and their losses; everything else is the same
UNTUNED = "zero-shot"
DIFFERENCES = (("CoOp + TCPT", "CoOp"),)
SPLITS = ("base", "novel")
TITLE = "What does TCPT do? CoOp with and without it"


@dataclass(frozen=True)
class Demo:
    """The demonstration's results."""

    results: Results  # the numbers
    computed: int  # how many runs had to be computed
    files: tuple[Path, ...]  # the files that were written
    story: tuple[str, ...] = ()  # what came of it, in a few sentences


def run_demo(
    settings: DemoSettings, out: str | Path, *, store: FeatureStore | None = None, progress: Progress = silent
) -> Demo:
    """Run what is not done yet, then write numbers and figures into `out`.

    Args:
        settings: What is compared.
        out: Folder of the runs, numbers and figures.
        store: Where image features are kept on disk, so that they are computed once.
        progress: Called while it works.
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
    rows, files, gaps = list[Row](), [], {}
    for done, (name, by_method) in enumerate(runs.items()):
        progress("tables and figures", done, len(runs), name)
        methods = stored_predictions(by_method)
        gaps[name] = {method: _gap(parts["novel"]) for method, parts in methods.items()}
        rows += compare(name, methods, differences=DIFFERENCES, n_bins=settings.bins, resamples=settings.resamples)
        panels = {
            split: {method: runs_panel(parts[split], n_bins=settings.bins) for method, parts in methods.items()}
            for split in SPLITS
        }
        files.append(save_figure(reliability_figure(panels, name), out / f"reliability-{slug(name)}.png"))
    progress("tables and figures", len(runs), len(runs), "")
    all_runs = [result for by_method in runs.values() for seeds in by_method.values() for result in seeds]
    sizes = {name: _sizes(next(iter(by_method.values()))[0]) for name, by_method in runs.items()}
    results = Results(settings.record(), sizes, tuple(rows), _metadata(all_runs[0]))
    results.write_csv(out / "table.csv")
    results.write_json(out / "table.json")
    report = _report(settings, all_runs, out, progress)
    files.append(write_report(report, out / "report.html"))
    computed = sum(not result.reused for result in all_runs)
    story = (*report.headline, plain_sentence(gaps))
    return Demo(results, computed, (out / "table.csv", out / "table.json", *files), story)


def _gap(runs: Sequence[Predictions]) -> float:
    return float(np.mean([each.confidence.mean() - each.correct.mean() for each in runs]))


def plain_sentence(gaps: Mapping[str, Mapping[str, float]]) -> str:
    """What a manager has to know: how much surer than right a tuned model is about classes it was not tuned on.

    >>> plain_sentence({"signs": {"CoOp": 0.164, "CoOp + TCPT": -0.02}})
    'In plain words: about new signs the tuned model is 16 points surer than it is right, with TCPT 2 points less sure.'
    """

    def words(gap: float) -> tuple[str, str]:
        return plural(round(100 * abs(gap)), "point"), "surer" if gap > 0 else "less sure"

    parts = []
    for dataset, gap in gaps.items():
        (before, first), (after, second) = (words(gap[method]) for method in METHODS)
        what = dataset.removeprefix("pocket_")
        parts.append(f"about new {what} the tuned model is {before} {first} than it is right, ")
        parts[-1] += f"with TCPT {after}{f' {second}' if second != first else ''}"
    return f"In plain words: {'; '.join(parts)}."


def _report(settings: DemoSettings, runs: list[Run], out: Path, progress: Progress) -> Report:
    """The page of these runs, whatever else is in their folder."""
    chosen = ReportSettings(title=TITLE, bins=settings.bins, bootstrap=settings.resamples)
    source = read_source(*(result.folder for result in runs), progress=progress)
    return build_report(source, chosen, near=out, progress=progress)


def stored_predictions(runs: Mapping[str, list[Run]]) -> dict[str, dict[str, list[Predictions]]]:
    """Predictions on base and novel test images from stored logits: method -> split -> one entry per run."""
    stored = {method: [StoredRun(result) for result in results] for method, results in runs.items()}
    models = {UNTUNED: [(next(iter(stored.values()))[0], ZERO_SHOT)]}
    models |= {method: [(each, TUNED) for each in seeds] for method, seeds in stored.items()}
    return {
        method: {split: [each.sample(kind, split) for each, kind in found] for split in SPLITS}
        for method, found in models.items()
    }


def _names(settings: DemoSettings, resources: Resources, progress: Progress) -> dict[str, str]:
    """Names of the datasets, all different, and where they are; pictures of the package are made here."""
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


def _sizes(result: Run) -> dict[str, dict[str, int]]:
    return {split: {count: result.metrics[split][count] for count in ("images", "classes")} for split in SPLITS}


def _metadata(result: Run) -> dict[str, Any]:
    return {
        "weights": result.record["backbone"]["fingerprint"],
        "calprompt": calprompt.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }

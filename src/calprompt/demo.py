"""The demonstration: zero-shot CLIP, CoOp, and CoOp with TCPT, from base to novel classes, over several seeds.

    <out>/runs/                       the runs, as `calprompt train` writes them
          table.csv, table.json       the numbers
          reliability-<dataset>.png   confidence against accuracy
          report.html                 all of it on one page, with mistakes and thresholds

Finished runs are not computed again, and one that was interrupted continues. Reading the names and defaults of the
settings needs no torch.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import calprompt
from calprompt.errors import CalpromptError, SettingError
from calprompt.evaluation.settings import TUNED, ZERO_SHOT
from calprompt.progress import Progress, silent
from calprompt.registry import check_types
from calprompt.runs.config import RunConfig, build_config, read_recipe
from calprompt.text import bullets, plural, slug

if TYPE_CHECKING:
    from calprompt.features.store import FeatureStore
    from calprompt.metrics import Predictions
    from calprompt.results.compare import Results
    from calprompt.runs.folder import Run
    from calprompt.runs.resources import Resources

METHODS = {"CoOp": "ce", "CoOp + TCPT": "tcpt"}  # and their losses; everything else is the same
DIFFERENCES = (("CoOp + TCPT", "CoOp"),)
SPLITS = ("base", "novel")
TITLE = "What does TCPT do? CoOp with and without it"
TOLERANCE = 0.05  # percentage points


@dataclass(frozen=True)
class DemoSettings:
    """What is compared; checked when it is made.

    Attributes:
        data: Datasets: folders, tables or names of 'calprompt data list'.
        seeds: Runs of each method, with seeds 1, 2, …
        epochs: Passes over the training images; the recipe's 50 if None.
        backbone: As 'calprompt train' takes it.
        recipe: Settings of CoOp; the loss is that of each method.
        bins: Bins of the calibration errors.
        resamples: Resamples for the intervals.
    """

    data: tuple[str, ...] = ("pocket_signs", "pocket_photos")
    seeds: int = 3
    epochs: int | None = None
    backbone: str = "pocket-photo"
    recipe: str = "coop-photo"
    bins: int = 10
    resamples: int = 1000

    def __post_init__(self) -> None:
        check_types("", type(self).__init__, vars(self))
        for name in ("seeds", "resamples"):
            if getattr(self, name) < 1:
                raise SettingError(f"must be at least 1, got {getattr(self, name)}", parameter=name)
        if not self.data or len(set(self.data)) < len(self.data):
            raise SettingError(
                f"must be one or more different datasets, got {', '.join(self.data) or 'none'}", parameter="data"
            )

    def config(self, data: str, loss: str, seed: int) -> RunConfig:
        """The settings of one run."""
        changes: dict[str, Any] = {"data": data, "loss": loss, "seed": seed, "backbone": self.backbone}
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        return build_config(**{**read_recipe(self.recipe)[1], **changes})

    def record(self) -> dict[str, Any]:
        """The settings as plain data, with the epochs of the recipe."""
        epochs = self.config(self.data[0], "ce", 1).training.epochs
        return {**asdict(self), "data": list(self.data), "epochs": epochs}


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
    import numpy as np
    import torch

    from calprompt.report.page.build import build_report
    from calprompt.report.page.document import ReportSettings
    from calprompt.report.page.render import write_report
    from calprompt.report.reliability import reliability_figure, runs_panel, save_figure
    from calprompt.results.compare import Results, Row, compare
    from calprompt.results.sources import read_source
    from calprompt.runs.execute import run
    from calprompt.runs.resources import Resources

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
    rows, sizes, files, gaps = list[Row](), {}, [], {}
    for done, (name, by_method) in enumerate(runs.items()):
        progress("tables and figures", done, len(runs), name)
        methods = stored_predictions(by_method)
        gaps[name] = {
            method: float(np.mean([each.confidence.mean() - each.correct.mean() for each in parts["novel"]]))
            for method, parts in methods.items()
        }
        rows += compare(name, methods, differences=DIFFERENCES, n_bins=settings.bins, resamples=settings.resamples)
        metrics = next(iter(by_method.values()))[0].metrics
        sizes[name] = {split: {count: metrics[split][count] for count in ("images", "classes")} for split in SPLITS}
        panels = {
            split: {method: runs_panel(parts[split], n_bins=settings.bins) for method, parts in methods.items()}
            for split in SPLITS
        }
        files.append(save_figure(reliability_figure(panels, name), out / f"reliability-{slug(name)}.png"))
    progress("tables and figures", len(runs), len(runs), "")
    all_runs = [result for by_method in runs.values() for seeds in by_method.values() for result in seeds]
    about = {
        "weights": all_runs[0].record["backbone"]["fingerprint"],
        "calprompt": calprompt.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    results = Results(settings.record(), sizes, tuple(rows), about)
    results.write_csv(out / "table.csv")
    results.write_json(out / "table.json")
    source = read_source(*(result.folder for result in all_runs), progress=progress)  # whatever else is in their folder
    wanted = ReportSettings(title=TITLE, bins=settings.bins, bootstrap=settings.resamples)
    report = build_report(source, wanted, near=out, progress=progress)
    files.append(write_report(report, out / "report.html"))
    computed = sum(not result.reused for result in all_runs)
    story = (*report.headline, plain_sentence(gaps))
    return Demo(results, computed, (out / "table.csv", out / "table.json", *files), story)


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


def stored_predictions(runs: Mapping[str, list[Run]]) -> dict[str, dict[str, list[Predictions]]]:
    """Predictions on base and novel test images from stored logits: method -> split -> one entry per run."""
    from calprompt.evaluation.models import StoredRun

    stored = {method: [(StoredRun(each), TUNED) for each in seeds] for method, seeds in runs.items()}
    stored = {ZERO_SHOT: [(next(iter(stored.values()))[0][0], ZERO_SHOT)], **stored}
    return {
        method: {split: [each.sample(model, split) for each, model in found] for split in SPLITS}
        for method, found in stored.items()
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


def check_settings(settings: Mapping[str, Any], expected: Results, name: str) -> None:
    """Raise `SettingError` if numbers of these settings cannot equal the expected ones, those of the file `name`."""
    differing = [f"{key} {value}, not {settings.get(key)}" for key, value in _differing(expected.settings, settings)]
    if differing:
        raise SettingError(f"{name} has other settings: {'; '.join(differing)}")


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in expected.items() if found.get(key) != value]


def check_results(results: Results, expected: Results, name: str, tolerance: float = TOLERANCE) -> int:
    """Compare results with expected ones."""
    check_settings(results.settings, expected, name)
    rows, expected_rows = ({row.key: row for row in table.rows} for table in (results, expected))
    lines, compared = list[str](), 0
    for key, expected_row in expected_rows.items():
        where = ", ".join(key)
        if key not in rows:
            lines.append(f"{where}: missing, expected {100 * expected_row.value:.2f}")
            continue
        for end in ("value", "low", "high"):
            value, expected_value = getattr(rows[key], end), getattr(expected_row, end)
            compared += value is not None
            if value is None or expected_value is None:
                equal = value is expected_value
            else:
                equal = abs(100 * value - 100 * expected_value) <= tolerance
            if not equal:
                what = "" if end == "value" else f" ({end} end of the interval)"
                lines.append(f"{where}{what}: {_percent(value)}, expected {_percent(expected_value)}")
    lines += [f"{', '.join(key)}: not expected" for key in rows if key not in expected_rows]
    if lines:  # which other weights or versions may explain
        about = [
            f"{key} {results.about.get(key)} instead of {v}" for key, v in _differing(expected.about, results.about)
        ]
        reason = f" ({'; '.join(about)})" if about else ""
        raise CalpromptError(
            f"{len(lines)} of {compared} numbers differ from {name} by more than {tolerance:g} percentage "
            f"points{reason}:{bullets(lines)}"
        )
    return compared


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.2f}"

"""All settings of a classifier. Reading their names and defaults needs no torch; they are checked when it is fitted."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from calprompt.errors import SettingError
from calprompt.hardware import check_device
from calprompt.promises.requests import Requests
from calprompt.registry import check_types, unknown
from calprompt.runs.config import RunConfig
from calprompt.training_config import TrainingConfig, never_used

MANY_CLASSES, CLASSES_AT_ONCE = 1000, 500  # with more classes than many, their prompts are encoded so many at a time
DEFAULT_BACKBONE = "ViT-B-16-quickgelu/openai"
OF_RUNS = ("loss", "views", "crop", "template", "device", "dtype", "backbone_config")  # settings of runs too
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}  # of the budget, in seconds
POCKET_EPOCHS = (50, 0.02)  # and rate, measured on datasets that are kept out
USUAL_EPOCHS = (100, 0.002)  # and rate, as KgCoOp was published


@dataclass(eq=False, repr=False)
class FitSettings:
    """Settings of `Classifier`, which are also the flags of `calprompt fit`.

    Attributes:
        backbone: Open_clip's model/tag, hf-hub:owner/name, a file or folder of weights, or pocket, pocket-photo or
            pocket-vit of the package; OpenAI's ViT-B/16, or pocket-photo where that is not here and cannot be
            downloaded, if None.
        tuner: Name of the method, see 'calprompt list'; with auto, the one with the best cross-fitted likelihood.
        budget: Time limit for comparing learners, such as 2m, after which the rest is left out; no limit if None.
        loss: A name or a sum such as 'ce + 5*moments'.
        calibrator: Calibrator of the confidences; none keeps the model's own.
        target_error: Promised largest error rate among answered images, such as 0.05; 0 for no such promise.
        coverage: Promised share of prediction sets that contain the true class; 0 for no prediction sets.
        per_class: Also promise the coverage for each class separately.
        level: Confidence level of the promise on errors.
        coverage_level: Confidence level of the coverage for this very model, such as 0.95; on average over models if
            None.
        none_of_these: Share of images of its own classes that may be called 'none of these'; 0 turns this answer off.
        costs: Costs of errors, such as 'scratched as good: 20', others costing 1; or a CSV with the columns truth,
            answer and cost. The model gives the answer with the smallest expected cost.
        never_miss: Promised largest share of a class's images that may be called something else, by class.
        fixes: CSV of 'calprompt data inspect' with the images to leave out and to relabel.
        shots: Maximum number of images per class to tune on, the others being held out; all that are not held out if
            None.
        held_out: Share of each class to hold out for promises; as much as they need if None.
        folds: Number of cross-fitting folds for fitting the calibrator.
        group_by: Regular expression, such as '^[^_]+'; images whose names match it with the same text stay together.
        options: Options of the tuner, such as context=4.
        epochs: Passes over the training images; chosen for the learner and the backbone if None.
        batch_size: Images in a training step.
        lr: Learning rate; chosen for the learner and the backbone if None.
        seed: Seed of the division, of prompts and of batches.
        views: Random crops of every training image, taken in turn by the epochs; 0: images as they are tested.
        crop: Smallest share of an image's area in a crop.
        template: Sentence of the untuned model; the dataset's, or 'a photo of a {}.', if None.
        class_names: Names that the model reads for labels that are not words: from label to name.
        classes: File with the order and names of the classes, and their template.
        root: Folder that has the datasets, or the images of a table.
        ignore_exif: Leave images as they are stored, instead of turning them as their EXIF data say.
        skip_bad: Leave out images that cannot be read, instead of stopping with a list of them.
        device: Device to compute on: cpu, cuda, cuda:1, …
        dtype: Precision of the backbone's weights: float32, float16, bfloat16 or float64.
        chunk: Classes encoded at a time, to save memory; all of them if None.
        backbone_config: Open_clip model name or JSON config, for a weights file that has none.
        imports: Python files of your own that register tuners, losses or calibrators.
        work_dir: Folder that keeps an interrupted fit until it is resumed; the cache folder if None.
        verbose: Show progress and a summary at the end.
    """

    backbone: str | None = None
    tuner: str = "auto"
    budget: str | None = None
    loss: str = "ce"
    calibrator: str = "temperature"
    target_error: float = 0.1
    coverage: float = 0.9
    per_class: bool = False
    level: float = 0.95
    coverage_level: float | None = None
    none_of_these: float = 0.05
    costs: tuple[str, ...] = ()
    never_miss: Mapping[str, float] | None = None
    fixes: str | None = None
    shots: int | None = 64
    held_out: float | None = None
    folds: int = 4
    group_by: str | None = None
    options: Mapping[str, Any] | None = None
    epochs: int | None = None
    batch_size: int = 128
    lr: float | None = None
    seed: int = 1
    views: int | None = 0
    crop: float = 0.08
    template: str | None = None
    class_names: Mapping[Any, str] | Sequence[str] | None = None
    classes: str | None = None
    root: str | None = None
    ignore_exif: bool = False
    skip_bad: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    chunk: int | None = None
    backbone_config: str | None = None
    imports: tuple[str, ...] = ()
    work_dir: str | None = None
    verbose: bool = True

    def checked_requests(self) -> Requests:
        """What is to be promised; raises for whatever is wrong with the settings."""
        values = self._values()
        check_types("", FitSettings.__init__, values)
        for name in ("target_error", "coverage", "none_of_these"):
            if not 0 <= values[name] < 1:
                raise SettingError(f"must be a share, at least 0 and below 1; got {values[name]}", parameter=name)
        for name, least in (("folds", 2), ("shots", 1), ("chunk", 1)):
            if values[name] is not None and values[name] < least:
                raise SettingError(f"must be at least {least}, got {values[name]}", parameter=name)
        if self.lr is not None and self.epochs is not None and self.epochs <= TrainingConfig.warmup_epochs:
            raise never_used(self.epochs, TrainingConfig.warmup_epochs)
        check_device(self.device)
        seconds_of(self.budget)
        self.groups_of([])
        return requests_of(values)

    def plain(self) -> FitSettings:
        """The same with numbers as Python has them, where a search over parameters gave numpy's."""
        return FitSettings(**{name: v.item() if hasattr(v, "item") else v for name, v in self._values().items()})

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(FitSettings)}

    def groups_of(self, names: Sequence[str]) -> list[str] | None:
        """What `group_by` finds in each name, or the name where it finds nothing; None without `group_by`."""
        if self.group_by is None:
            return None
        try:
            pattern = re.compile(self.group_by)
        except re.error as error:
            raise SettingError(
                f"must be a regular expression, got {self.group_by!r}: {error}", parameter="group_by"
            ) from error
        found = [pattern.search(name) for name in names]
        return [
            name if match is None else "/".join(filter(None, match.groups())) or match[0]
            for name, match in zip(names, found, strict=True)
        ]

    def run_config(self, data: str, classes: int, tuner: str, options: Mapping[str, Any]) -> RunConfig:
        """The settings of the runs of one learner, with its options; many classes are encoded a part at a time."""
        from calprompt import tuners
        from calprompt.pocket import MODELS

        epochs, lr = tuners.get(tuner).schedule or (POCKET_EPOCHS if self.backbone in MODELS else USUAL_EPOCHS)
        return RunConfig(
            backbone=self.backbone or DEFAULT_BACKBONE,
            data=data,
            tuner=tuner,
            options=dict(options),
            protocol="few-shot",
            shots=None,
            training=TrainingConfig(
                epochs=epochs if self.epochs is None else self.epochs,
                batch_size=self.batch_size,
                lr=lr if self.lr is None else self.lr,
                seed=self.seed,
            ),
            chunk=self.chunk if self.chunk is not None else CLASSES_AT_ONCE if classes > MANY_CLASSES else None,
            imports=tuple(self.imports),
            exif=not self.ignore_exif,
            **{name: getattr(self, name) for name in (*OF_RUNS, "root", "classes", "skip_bad")},
        )


def seconds_of(budget: str | None) -> float:
    """A time such as "90s", "2m" or "1h" in seconds; infinite for None.

    >>> seconds_of("2m"), seconds_of("1.5h"), seconds_of("90"), seconds_of(None)
    (120.0, 5400.0, 90.0, inf)
    """
    if budget is None:
        return float("inf")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if found is None or not float(found[1]):
        raise SettingError(f"must be a time such as 90s, 2m or 1h, got {budget!r}", parameter="budget")
    return float(found[1]) * UNITS[found[2]]


def requests_of(values: Mapping[str, Any]) -> Requests:
    """What is to be promised, from settings by name; 0 stands for no promise."""
    return Requests(
        values["target_error"] or None,
        values["coverage"] or None,
        values["per_class"],
        values["level"],
        values.get("coverage_level"),
        tuple((values.get("never_miss") or {}).items()),
    )


def cost_matrix(texts: Sequence[str], class_names: Sequence[str]) -> tuple[tuple[float, ...], ...] | None:
    """What it costs to answer a class (column) where another is true (row); None if all errors cost the same.

    >>> cost_matrix(["scratched as good: 20"], ["good", "scratched"])
    ((0.0, 1.0), (20.0, 0.0))
    """
    if not texts:
        return None
    found = [[float(row != column) for column in class_names] for row in class_names]
    for truth, answer, text in (row for each in texts for row in _cost_rows(each)):
        for name in (truth, answer):
            if name not in class_names:
                raise unknown("class in costs", name, class_names)
        try:
            cost = float(text)
        except ValueError:
            cost = math.nan
        if not 0 <= cost < math.inf:
            raise SettingError(f"must be numbers of at least 0, got {text.strip()!r}", parameter="costs")
        found[class_names.index(truth)][class_names.index(answer)] = cost
    return tuple(map(tuple, found))


def _cost_rows(text: str) -> Iterator[tuple[str, str, str]]:
    if match := re.fullmatch(r"\s*(.+?) as (.+?)\s*:\s*([^:]+)", text):
        yield match[1], match[2], match[3]
        return
    if not text.lower().endswith(".csv"):
        raise SettingError(f"must be like 'scratched as good: 20', or a CSV file; got {text!r}", parameter="costs")
    try:
        with Path(text).expanduser().open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SettingError(
            f"cannot read {text}: {getattr(error, 'strerror', None) or error}", parameter="costs"
        ) from error
    for number, row in enumerate(rows, start=2):
        if any(row.get(name) is None for name in ("truth", "answer", "cost")):
            raise SettingError(f"{text}: row {number} must have truth, answer and cost", parameter="costs")
        yield row["truth"], row["answer"], row["cost"]

"""The stored logits of a run, read once: as arrays to measure, and as records that calibrators take.

Test splits are base and novel, or all; and those of other data that the run was evaluated on, such as
imagenet_sketch/base. Without a calibrator, torch is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from calprompt.evaluation.settings import KINDS, NONE, PARTS, TUNED, ZERO_SHOT, create_calibrator
from calprompt.metrics import Predictions, predictions
from calprompt.runs.folder import LOGITS, Run, read_run_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from calprompt.calibrators import StoredLogits


@dataclass(frozen=True)
class StoredModel:
    """The results of one model on the images of a run."""

    name: str  # "tuned" or "zero-shot"
    val: StoredLogits | None  # of the classes that were trained on; None if the run has no validation images
    tests: dict[str, StoredLogits]  # by split
    missing: dict[str, str] = field(default_factory=dict)  # test split -> why the model has no logits of it
    others: frozenset[str] = frozenset()  # test splits of other classes than those trained on


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """A file of logits, of a run or of its evaluation on other data."""

    path: Path
    arrays: Mapping[str, Any]
    metadata: Mapping[str, Any]
    metrics: Mapping[str, Any]  # what was measured on it

    @classmethod
    def read(cls, folder: Path, metrics: Mapping[str, Any], record: Mapping[str, Any]) -> LogitsFile:
        """Read a file and verify it against the record that has its checksum."""
        file = cls(folder / LOGITS, *read_run_tensors(folder, LOGITS, record, "numpy"), metrics)
        if not {"class_names", "logit_scale"} <= set(file.metadata) or not file.parts:
            raise DamagedFileError(
                f"{file.path} does not hold class_names and logit_scale: it is damaged or not of a run"
            )
        return file

    @property
    def parts(self) -> list[str]:
        """Which of base, novel and all it has; the first one of a run is what was trained on."""
        return [part for part in PARTS if part in self.metadata["class_names"]]

    def scale(self, model: str) -> float:
        """The logit scale of a model; the untuned one has another if the run fitted its own (anchor=True)."""
        tuned = float(self.metadata["logit_scale"])
        return tuned if model == TUNED else float(self.metadata.get("zero_shot_logit_scale", tuned))

    def __getitem__(self, name: str) -> Any:
        if name not in self.arrays:
            raise DamagedFileError(f"{self.path} does not hold {name!r}: it is damaged or not of a run")
        return self.arrays[name]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run and its logits, which are read when they are asked for."""

    run: Run

    @cached_property
    def files(self) -> dict[str, LogitsFile]:
        """The run's own file, and by "name/" those of other data that it was evaluated on."""
        if not (self.run.folder / LOGITS).is_file():
            raise NotFoundError(f"{self.run.folder} has no {LOGITS}: it {self.run.unfinished}")
        places = {"": self.run} | {f"{each.name}/": each for each in self.run.transfers}
        return {prefix: LogitsFile.read(each.folder, each.metrics, each.record) for prefix, each in places.items()}

    @cached_property
    def models(self) -> dict[str, StoredModel]:
        """The tuned and the zero-shot model."""
        return {name: _model(name, self.files) for name in (TUNED, ZERO_SHOT)}

    @cached_property
    def names(self) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Class names and image names by split."""
        classes, images = (
            {
                f"{prefix}{split}": names
                for prefix, file in self.files.items()
                for split, names in file.metadata.get(kind, {}).items()
            }
            for kind in ("class_names", "image_names")
        )
        return classes, images

    def splits(self, model: str) -> list[str]:
        """Test splits that a model has logits of."""
        every = [f"{prefix}{part}" for prefix in self.files for part in PARTS]
        return [split for split in every if self.array(f"{split}/{KINDS[model][0]}") is not None]

    def array(self, name: str) -> Any:
        """An array by its split and name, such as novel/labels; None if it is not stored."""
        where, part, kind = ("", *name.split("/"))[-3:]
        return self.files[f"{where}/" if where else ""].arrays.get(f"{part}/{kind}")

    def sample(self, model: str, split: str, calibrator: str = NONE) -> Predictions:
        """What was predicted, under a calibrator fitted on the run's validation images."""
        if calibrator == NONE:
            where, _, part = split.rpartition("/")
            file = self.files[f"{where}/" if where else ""]
            return predictions(file[f"{part}/{KINDS[model][0]}"], file[f"{part}/labels"], from_logits=True)
        stored, fitted = self.models[model], create_calibrator(calibrator)
        if fitted.learns:
            if stored.val is None:
                raise CalpromptError(f"{self.run.folder} has no validation images to fit {calibrator} on")
            fitted.fit(stored.val)
        record = stored.tests[split]
        return predictions(fitted(record), record.given("labels"), from_logits=True)


def stored_models(run: Run) -> dict[str, StoredModel]:
    """The tuned and the zero-shot model of a run; raises if it has no logits, or they are damaged."""
    return StoredRun(run).models


def _model(name: str, files: Mapping[str, LogitsFile]) -> StoredModel:
    main = files[""]
    base = main.parts[0]
    tests, missing, others = {}, {}, set()
    for prefix, file in files.items():
        for part in file.parts:
            split = f"{prefix}{part}"
            if file.metadata["class_names"][part] != main.metadata["class_names"][base]:
                others.add(split)
            reason = file.metrics.get(part, {}).get("not_applicable")
            if reason and f"{part}/{KINDS[name][0]}" not in file.arrays:
                missing[split] = reason
            else:
                tests[split] = _record(name, file, main, part, part)
    val = _record(name, main, main, "val", base) if "val" in main.metadata["class_names"] else None
    return StoredModel(name, val, tests, missing, frozenset(others))


def _record(name: str, file: LogitsFile, main: LogitsFile, split: str, part: str) -> StoredLogits:
    """One split of a file; its text features are those of `part`, and base features are those of the run itself.

    What a tuned model is compared with has the tuned model's logit scale; the zero-shot model keeps its own.
    """
    import torch

    from calprompt.calibrators import StoredLogits

    (logits, text), base, scale = KINDS[name], main.parts[0], file.scale(name)
    arrays = {
        "logits": file[f"{split}/{logits}"],
        "labels": file[f"{split}/labels"],
        "frozen_text": file[f"{part}/frozen_text"],
        "base_text": main[f"{base}/{text}"],
        "base_frozen_text": main[f"{base}/frozen_text"],
        "zero_shot_logits": file[f"{split}/zero_shot_logits"],
    }
    tensors = {kind: torch.tensor(array) for kind, array in arrays.items()}
    tensors["zero_shot_logits"] *= scale / file.scale(ZERO_SHOT)
    try:
        return StoredLogits(**tensors, text=_text(text, file, main, part), logit_scale=scale)
    except CalpromptError as error:
        raise DamagedFileError(f"{file.path} is damaged: {error}") from error


def _text(kind: str, file: LogitsFile, main: LogitsFile, part: str) -> Tensor:
    """Text features of a part; a class that the run itself has keeps the features it has there.

    Tuned text features that depend on images differ between files: without this, a calibrator would not recognise a
    base class in other data.
    """
    import torch

    features = torch.tensor(file[f"{part}/{kind}"])
    if file is main or kind != KINDS[TUNED][1]:
        return features
    by_class: dict[str, Tensor] = {}
    for own in main.parts:
        if f"{own}/{kind}" in main.arrays:
            by_class |= zip(main.metadata["class_names"][own], torch.tensor(main[f"{own}/{kind}"]), strict=True)
    names = file.metadata["class_names"][part]
    return torch.stack([by_class.get(name, row) for name, row in zip(names, features, strict=True)])

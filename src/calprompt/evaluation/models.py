"""The stored logits of a run as records that calibrators take: the tuned model and the untuned one.

Test splits are base and novel, or all; and those of other data that the run was evaluated on, such as
imagenet_sketch/base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calprompt.calibrators import StoredLogits
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError
from calprompt.evaluation.settings import KINDS, PARTS, TUNED, ZERO_SHOT
from calprompt.runs.folder import LOGITS, Run, read_run_tensors


@dataclass(frozen=True)
class StoredModel:
    """The results of one model on the images of a run.

    Attributes:
        name: "tuned" or "zero-shot".
        val: Validation results of the classes that were trained on; None if the run has no validation images.
        tests: By split.
        missing: Test split -> why the model has no logits of it.
        others: Test splits of other classes than those trained on.
    """

    name: str
    val: StoredLogits | None
    tests: dict[str, StoredLogits]
    missing: dict[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LogitsFile:
    """A file of logits, of a run or of its evaluation on other data."""

    path: Path  # where it is
    tensors: Mapping[str, Tensor]  # what it contains
    class_names: Mapping[str, list[str]]  # part (base, novel or all; val) -> class names
    logit_scale: float  # logit scale of the tuned model
    zero_shot_scale: float  # logit scale of the untuned model; another one if the run fitted its own (anchor=True)
    metrics: Mapping[str, Any]  # what was measured on it

    @classmethod
    def read(cls, folder: Path, metrics: Mapping[str, Any], record: Mapping[str, Any]) -> LogitsFile:
        """Read a file of logits and verify it against the record that has its checksum."""
        path = folder / LOGITS
        tensors, metadata = read_run_tensors(folder, LOGITS, record)
        if not {"class_names", "logit_scale"} <= set(metadata) or not set(PARTS) & set(metadata["class_names"]):
            raise DamagedFileError(f"{path} does not hold class_names and logit_scale: it is damaged or not of a run")
        scale = float(metadata["logit_scale"])
        zero_shot = float(metadata.get("zero_shot_logit_scale", scale))
        return cls(path, tensors, metadata["class_names"], scale, zero_shot, metrics)

    @property
    def parts(self) -> list[str]:
        """Which of base, novel and all it has; the first one of a run is what was trained on."""
        return [part for part in PARTS if part in self.class_names]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise DamagedFileError(f"{self.path} does not hold {name!r}: it is damaged or not of a run")
        return self.tensors[name]


def stored_models(run: Run) -> dict[str, StoredModel]:
    """The tuned and the zero-shot model of a run, from its files of logits.

    Raises:
        NotFoundError: if the run has no logits, because it is not finished.
        DamagedFileError: if a file of logits is damaged.
    """
    if not (run.folder / LOGITS).is_file():
        raise NotFoundError(f"{run.folder} has no {LOGITS}: it {run.unfinished}")
    main = LogitsFile.read(run.folder, run.metrics, run.record)
    files = {f"{other.name}/": LogitsFile.read(other.folder, other.metrics, other.record) for other in run.transfers}
    return {name: _model(name, main, {"": main, **files}) for name in (TUNED, ZERO_SHOT)}


def _model(name: str, main: LogitsFile, files: Mapping[str, LogitsFile]) -> StoredModel:
    """A model from the file of the run itself, `main`, and all files by the prefix of their splits."""
    logits, _ = KINDS[name]
    base = main.parts[0]
    tests, missing, others = {}, {}, set()
    for prefix, file in files.items():
        for part in file.parts:
            split = f"{prefix}{part}"
            if file.class_names[part] != main.class_names[base]:
                others.add(split)
            reason = file.metrics.get(part, {}).get("not_applicable")
            if reason and f"{part}/{logits}" not in file.tensors:
                missing[split] = reason
            else:
                tests[split] = _record(name, file, main, part, part)
    val = _record(name, main, main, "val", base) if "val" in main.class_names else None
    return StoredModel(name, val, tests, missing, frozenset(others))


def _record(name: str, file: LogitsFile, main: LogitsFile, split: str, part: str) -> StoredLogits:
    """One split of a file; its text features are those of `part`, and base features are those of the run itself.

    What a tuned model is compared with has the tuned model's logit scale; the zero-shot model keeps its own.
    """
    scale = file.logit_scale if name == TUNED else file.zero_shot_scale
    (logits, text), base = KINDS[name], main.parts[0]
    tensors = {
        "logits": file[f"{split}/{logits}"],
        "labels": file[f"{split}/labels"],
        "text": _text(text, file, main, part),
        "frozen_text": file[f"{part}/frozen_text"],
        "base_text": main[f"{base}/{text}"],
        "base_frozen_text": main[f"{base}/frozen_text"],
        "zero_shot_logits": file[f"{split}/zero_shot_logits"] * (scale / file.zero_shot_scale),
    }
    try:
        return StoredLogits(**tensors, logit_scale=scale)
    except CalpromptError as error:
        raise DamagedFileError(f"{file.path} is damaged: {error}") from error


def _text(kind: str, file: LogitsFile, main: LogitsFile, part: str) -> Tensor:
    """Text features of a part; a class that the run itself has keeps the features it has there.

    Tuned text features that depend on images differ between files: without this, a calibrator would not recognise a
    base class in other data.
    """
    features = file[f"{part}/{kind}"]
    if file is main or kind != KINDS[TUNED][1]:
        return features
    by_class: dict[str, Tensor] = {}
    for main_part in main.parts:
        if f"{main_part}/{kind}" in main.tensors:
            by_class |= zip(main.class_names[main_part], main[f"{main_part}/{kind}"], strict=True)
    return torch.stack([by_class.get(name, row) for name, row in zip(file.class_names[part], features, strict=True)])

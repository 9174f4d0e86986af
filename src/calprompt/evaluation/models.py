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
from calprompt.errors import CalpromptError
from calprompt.runs.folder import LOGITS, Run, read_run_tensors

TUNED, ZERO_SHOT = "tuned", "zero-shot"
KINDS = {TUNED: ("logits", "text"), ZERO_SHOT: ("zero_shot_logits", "frozen_text")}
PARTS = ("base", "novel", "all")


@dataclass(frozen=True)
class StoredModel:
    """What one model gave on the images of a run.

    val      of the classes that were trained on; None if the run has no validation images
    tests    by split
    missing  test splits the model has no logits of, and why
    others   test splits of other classes than those trained on
    """

    name: str
    val: StoredLogits | None
    tests: dict[str, StoredLogits]
    missing: dict[str, str] = field(default_factory=dict)
    others: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LogitsFile:
    """A file of logits, the run's own or one of other data, and the metrics that were taken of it."""

    path: Path
    tensors: Mapping[str, Tensor]
    class_names: Mapping[str, list[str]]
    logit_scale: float
    metrics: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, metrics: Mapping[str, Any], record: Mapping[str, Any]) -> LogitsFile:
        """A file of logits, verified against the record that has its checksum."""
        path = folder / LOGITS
        tensors, about = read_run_tensors(folder, LOGITS, record)
        if not {"class_names", "logit_scale"} <= set(about) or not set(PARTS) & set(about["class_names"]):
            raise CalpromptError(f"{path} does not hold class_names and logit_scale: it is damaged or not of a run")
        return cls(path, tensors, about["class_names"], float(about["logit_scale"]), metrics)

    @property
    def parts(self) -> list[str]:
        """What it has test images of; the first of the run's own is what was trained on."""
        return [part for part in PARTS if part in self.class_names]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise CalpromptError(f"{self.path} does not hold {name!r}: it is damaged or not of a run")
        return self.tensors[name]


def stored_models(run: Run) -> dict[str, StoredModel]:
    """The tuned and the zero-shot model of a run, from its files of logits."""
    if not (run.folder / LOGITS).is_file():
        raise CalpromptError(f"{run.folder} has no {LOGITS}: it {run.unfinished}")
    own = LogitsFile.read(run.folder, run.metrics, run.record)
    files = {f"{each.name}/": LogitsFile.read(each.folder, each.metrics, each.record) for each in run.transfers}
    return {name: _model(name, own, {"": own, **files}) for name in (TUNED, ZERO_SHOT)}


def _model(name: str, own: LogitsFile, files: Mapping[str, LogitsFile]) -> StoredModel:
    """`files` are those of all test splits, by what the names of their splits begin with."""
    logits, _ = KINDS[name]
    base = own.parts[0]
    tests, missing, others = {}, {}, set()
    for where, file in files.items():
        for part in file.parts:
            split = f"{where}{part}"
            if file.class_names[part] != own.class_names[base]:
                others.add(split)
            reason = file.metrics.get(part, {}).get("not_applicable")
            if reason and f"{part}/{logits}" not in file.tensors:
                missing[split] = reason
            else:
                tests[split] = _record(name, file, own, part, part)
    val = _record(name, own, own, "val", base) if "val" in own.class_names else None
    return StoredModel(name, val, tests, missing, frozenset(others))


def _record(name: str, file: LogitsFile, own: LogitsFile, split: str, part: str) -> StoredLogits:
    """One split of a file; its text features are those of `part`, and base features are the run's own."""
    (logits, text), base = KINDS[name], own.parts[0]
    held = {
        "logits": file[f"{split}/{logits}"],
        "labels": file[f"{split}/labels"],
        "text": _text(text, file, own, part),
        "frozen_text": file[f"{part}/frozen_text"],
        "base_text": own[f"{base}/{text}"],
        "base_frozen_text": own[f"{base}/frozen_text"],
        "zero_shot_logits": file[f"{split}/zero_shot_logits"],
    }
    try:
        return StoredLogits(**held, logit_scale=file.logit_scale)
    except CalpromptError as error:
        raise CalpromptError(f"{file.path} is damaged: {error}") from error


def _text(kind: str, file: LogitsFile, own: LogitsFile, part: str) -> Tensor:
    """Text features of a part; of tuned prompts, those that the run has of a class stand for it in other data too.

    They differ only where text features depend on images: without this, a base class in other pictures would be none.
    """
    found = file[f"{part}/{kind}"]
    if file is own or kind != KINDS[TUNED][1]:
        return found
    known: dict[str, Tensor] = {}
    for each in own.parts:
        if f"{each}/{kind}" in own.tensors:
            known |= zip(own.class_names[each], own[f"{each}/{kind}"], strict=True)
    return torch.stack([known.get(name, row) for name, row in zip(file.class_names[part], found, strict=True)])

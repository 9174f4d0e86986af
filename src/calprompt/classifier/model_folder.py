"""The folder of a fitted classifier: the only code that knows its files.

    <model>/config.json               format, settings, classes, backbone, calibrator, thresholds, promises, checks,
                                      checksums of the files below
            model.safetensors         what was learned, and the text features that it leads to
            predictions.safetensors   logits of every image, by prompts that did not learn from it
            images.csv                the same for people: which image was used how, and what was predicted
            README.md                 the model card, with the metadata that Hugging Face's hub reads
            findings.csv              what may be wrong with the images, if something may
            reliability.png           how often answers of a confidence were right, before and after calibration

The weights of the backbone are not in it; their fingerprint is.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import calprompt
from calprompt.calibrators import Calibrator
from calprompt.classifier.checks import Band, Check
from calprompt.classifier.choosing import Choice
from calprompt.classifier.fitted_model import EXTRA, GUARD, PROMISED, UNUSED, FittedModel, Predicted
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, Parameter
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.files import check_writable, file_digest, read_json, write_bytes, write_json
from calprompt.folder_kinds import MODEL, RECORDS, require_kind
from calprompt.inspection.inspect import FILE as FINDINGS
from calprompt.inspection.inspect import Finding, findings_table
from calprompt.promises import DecisionRule, Promise, Unseen
from calprompt.runs.planning import import_digests
from calprompt.runs.restoring import allowed_imports, config_of_record, moved_settings
from calprompt.sealed_files import read_sealed, read_tensor_file, require, sealed, tensor_file
from calprompt.text import os_problem

FORMAT = 1
LIBRARY = "calprompt"
CONFIG = RECORDS[MODEL]
WEIGHTS = "model.safetensors"
PREDICTIONS = "predictions.safetensors"
IMAGES = "images.csv"
CARD = "README.md"
DIAGRAM = "reliability.png"
FILES = (WEIGHTS, PREDICTIONS)  # verified when a model is read; the others are for people, who may edit them
KEYS = {
    *("backbone", "calibrator", "checks", "classes", "counts", "data", "files", "folds", "imports", "logit_scale"),
    *("notes", "promises", "requests", "rule", "seconds", "settings", "skipped", "template", "totals", "unseen"),
}
USES = {PROMISED: "promises", UNUSED: "nothing", GUARD: "never-miss", EXTRA: "tuning (added)"}
ADVICE = "copy the folder again from where it was whole, or fit the model again"


def _is_ours(folder: Path) -> bool:
    """Whether everything in a folder was written by `write_model`, so that nothing else is lost with it."""
    try:
        record = read_json(folder / CONFIG)
    except CalpromptError:
        return False
    names = {path.name for path in folder.iterdir()}
    return (
        isinstance(record, dict)
        and record.get("library_name") == LIBRARY
        and names <= {CONFIG, WEIGHTS, PREDICTIONS, IMAGES, CARD, DIAGRAM, FINDINGS}
    )


def check_place(folder: str | Path, *, overwrite: bool = False) -> Path:
    """A place to write a model to; raises now rather than after hours of fitting."""
    folder = Path(folder).expanduser()
    check_writable(folder)
    if folder.is_dir() and any(folder.iterdir()):
        if not _is_ours(folder):
            raise CalpromptError(f"{folder} has other files in it; give a folder for the model that does not exist yet")
        if not overwrite:
            raise CalpromptError(
                f"{folder} has a model in it; replace it with ",
                Parameter("overwrite", True),
                ", or give another folder",
            )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(folder))
        probe = real.with_name(f".{real.name}.{secrets.token_hex(4)}.tmp")
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise CalpromptError(f"cannot write to {folder.parent}: {os_problem(error)}") from error
    return folder


def write_model(model: FittedModel, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model; the folder is there in full or not at all."""
    from calprompt.classifier.card import draw_reliability, model_card

    shown = check_place(folder, overwrite=overwrite)
    folder = Path(os.path.realpath(shown))  # a symbolic link stays, and what it points to is replaced
    building = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.tmp"
    try:
        building.mkdir()
        write_bytes(building / WEIGHTS, _weights(model))
        write_bytes(building / PREDICTIONS, _predictions(model.predicted))
        write_bytes(building / IMAGES, images_table(model).encode())
        if model.findings:
            write_bytes(building / FINDINGS, findings_table(model.findings).encode("utf-8", errors="surrogateescape"))
        draw_reliability(model, building / DIAGRAM)
        write_bytes(building / CARD, model_card(model).encode())
        digests = {name: file_digest(building / name) for name in FILES}
        write_json(building / CONFIG, sealed({**describe(model), "files": digests}, FORMAT))
        if folder.is_dir():
            old = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.old"
            folder.rename(old)
            try:
                building.rename(folder)
            except OSError:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            building.rename(folder)
    except OSError as error:
        raise CalpromptError(
            f"cannot write the model to {shown}: {error.strerror or error}; nothing was changed. Make room there, or "
            "give another folder"
        ) from error
    finally:
        with suppress(OSError):
            shutil.rmtree(building, ignore_errors=True)
    return shown


def read_model(
    folder: str | Path,
    *,
    backbone: str | None = None,
    device: str | None = None,
    imports: Sequence[str | Path] | None = None,
) -> FittedModel:
    """A model, every file verified."""
    folder = Path(folder).expanduser()
    require_kind(folder, MODEL)
    record = read_sealed(folder / CONFIG, FORMAT, KEYS, ADVICE)
    require(folder / CONFIG, record["classes"], {"labels", "names"}, ADVICE, within="classes")
    require(folder / CONFIG, record["backbone"], {"name", "fingerprint"}, ADVICE, within="backbone")
    for name in FILES:
        path = folder / name
        if not path.is_file():
            raise NotFoundError(f"{path} is not there; {ADVICE}")
        if file_digest(path) != record["files"].get(name):
            raise DamagedFileError(f"{path} is damaged or was edited: it is not the file that was written; {ADVICE}")
    tensors, _ = read_tensor_file(folder / WEIGHTS, checked=True)
    prompts = {name.removeprefix("prompts/"): each for name, each in tensors.items() if name.startswith("prompts/")}
    text = {name.removeprefix("text/"): each for name, each in tensors.items() if name.startswith("text/")}
    calibrator: Calibrator | None = None
    spec = record["calibrator"]["spec"]
    settings = moved_settings(record["settings"], backbone=backbone, device=device)
    settings["imports"] = allowed_imports(folder, record, imports)
    config = config_of_record(settings, folder / CONFIG)
    if spec != NONE:
        calibrator = create_calibrator(normalized_spec(spec)).restore(record["calibrator"]["state"])
    try:
        return FittedModel(
            config=config,
            labels=tuple(record["classes"]["labels"]),
            class_names=tuple(record["classes"]["names"]),
            template=record["template"],
            prompts=prompts,
            text=text,
            backbone=record["backbone"],
            calibrator=calibrator,
            calibrator_spec=spec,
            rule=DecisionRule.from_dict(record["rule"]),
            promises=tuple(Promise.from_dict(each) for each in record["promises"]),
            checks=tuple(_check(each) for each in record["checks"]),
            counts=tuple((int(tuned), int(promised)) for tuned, promised in record["counts"]),
            totals=tuple(record["totals"]),
            folds=record["folds"],
            predicted=_read_predictions(folder / PREDICTIONS),
            notes=tuple(record["notes"]),
            unseen=Unseen.from_dict(record["unseen"]),
            data=record["data"],
            skipped=record["skipped"],
            seconds=record["seconds"],
            logit_scale=record["logit_scale"],
            requests=record["requests"],
            findings=tuple(Finding(**each) for each in record.get("findings", ())),
            choice=Choice.from_dict(record["choice"]) if record.get("choice") else None,
        )
    except (KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{folder / CONFIG} was written by another version of calprompt, whose models this one does not read "
            f"({type(error).__name__}: {error}); {ADVICE}"
        ) from error


def describe(model: FittedModel) -> dict[str, Any]:
    """What config.json says of a model."""
    state = None if model.calibrator is None else model.calibrator.state()
    return {
        "model_type": "calprompt",
        "library_name": LIBRARY,
        "classes": {"labels": list(model.labels), "names": list(model.class_names)},
        "template": model.template,
        "requests": model.requests,
        "choice": None if model.choice is None else model.choice.to_dict(),
        "settings": model.config.record(),
        "imports": import_digests(model.config),
        "backbone": model.backbone,
        "calibrator": {"spec": model.calibrator_spec, "state": state},
        "rule": model.rule.to_dict(),
        "promises": [promise.to_dict() for promise in model.promises],
        "checks": [asdict(each) for each in model.checks],
        "counts": [list(pair) for pair in model.counts],
        "totals": list(model.totals),
        "folds": model.folds,
        "notes": list(model.notes),
        "unseen": model.unseen.to_dict(),
        "data": model.data,
        "skipped": model.skipped,
        "seconds": model.seconds,
        "logit_scale": model.logit_scale,
        "findings": [asdict(each) for each in model.findings],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "calprompt": calprompt.__version__,
            "torch": torch.__version__,
            "open_clip": version("open_clip_torch"),
            "python": platform.python_version(),
        },
    }


def images_table(model: FittedModel) -> str:
    """images.csv: every image, how it was used, what prompts that did not learn from it say, and what is decided."""
    found = model.predicted
    probabilities = model.probabilities(found)
    decisions = model.rule.decide(found.logits.astype(np.float64), probabilities)
    labels = [str(label) for label in model.labels]
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    table.writerow(["image", "used_for", "label", "predicted", "probability", "right", "decision", "sha256"])
    for name, digest, label, fold, row, decision in zip(
        found.names, found.digests, found.labels.tolist(), found.fold.tolist(), probabilities, decisions, strict=True
    ):
        top = int(model.rule.chosen(row[None])[0])
        used = USES.get(fold) or f"tuning (fold {fold + 1})"
        right = str(top == label).lower()
        table.writerow([name, used, labels[label], labels[top], f"{row[top]:.6f}", right, decision, digest])
    return rows.getvalue()


def _weights(model: FittedModel) -> bytes:
    tensors = {f"prompts/{name}": tensor for name, tensor in model.prompts.items()}
    tensors |= {f"text/{name}": tensor for name, tensor in model.text.items()}
    return tensor_file(tensors, {"backbone": model.backbone["fingerprint"], "tuner": model.config.tuner})


def _predictions(found: Predicted) -> bytes:
    tensors = {
        "labels": torch.from_numpy(found.labels),
        "fold": torch.from_numpy(found.fold),
        "logits": torch.from_numpy(found.logits),
        "zero_shot_logits": torch.from_numpy(found.zero_shot_logits),
    }
    return tensor_file(tensors, {"names": found.names, "digests": found.digests})


def _read_predictions(path: Path) -> Predicted:
    tensors, metadata = read_tensor_file(path, checked=True)
    return Predicted(
        metadata["names"],
        metadata["digests"],
        tensors["labels"].numpy(),
        tensors["logits"].numpy(),
        tensors["zero_shot_logits"].numpy(),
        tensors["fold"].numpy(),
    )


def _check(values: dict[str, Any]) -> Check:
    bands = [Band(**{**band, "interval": tuple(band["interval"])}) for band in values["bands"]]
    per_class = {name: (int(n), int(right)) for name, (n, right) in values["per_class"].items()}
    return Check(**{**values, "bands": bands, "per_class": per_class, "interval": tuple(values["interval"])})

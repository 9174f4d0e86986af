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

import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch

from calprompt.classifier.fitted_model import ARRAYS, EXTRA, GUARD, PROMISED, UNUSED, FittedModel, Predicted
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, Parameter
from calprompt.evaluation.settings import NONE, create_calibrator, normalized_spec
from calprompt.files import (
    MODEL,
    RECORDS,
    check_writable,
    csv_text,
    failing_as,
    file_digest,
    read_json,
    replaced_folder,
    require_kind,
    write_bytes,
    write_json,
)
from calprompt.inspection.inspect import FILE as FINDINGS
from calprompt.inspection.inspect import findings_table
from calprompt.records import plain, restored
from calprompt.runs.planning import import_digests
from calprompt.runs.preparation import versions
from calprompt.runs.restoring import allowed_imports, config_of_record, moved_settings
from calprompt.sealed_files import read_sealed, read_tensor_file, require, sealed, tensor_file

FORMAT = 1
LIBRARY = "calprompt"
CONFIG = RECORDS[MODEL]
WEIGHTS = "model.safetensors"
PREDICTIONS = "predictions.safetensors"
IMAGES = "images.csv"
CARD = "README.md"
DIAGRAM = "reliability.png"
FILES = (WEIGHTS, PREDICTIONS)  # verified when a model is read; the others are for people, who may edit them
PLAIN = (  # fields of a fitted model that config.json has under their own names
    *("backbone", "checks", "choice", "counts", "data", "findings", "folds", "logit_scale", "notes", "promises"),
    *("requests", "rule", "seconds", "skipped", "template", "totals", "unseen"),
)
KEYS = {"calibrator", "classes", "files", "imports", "settings", *PLAIN} - {"choice", "findings"}
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
    with failing_as(f"cannot write to {folder.parent}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(folder))
        probe = real.with_name(f".{real.name}.{secrets.token_hex(4)}.tmp")
        probe.mkdir()
        probe.rmdir()
    return folder


def write_model(model: FittedModel, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a model; the folder is there in full or not at all."""
    from calprompt.classifier.card import draw_reliability, model_card

    folder = check_place(folder, overwrite=overwrite)
    found, advice = model.predicted, "; nothing was changed. Make room there, or give another folder"
    arrays = {name: torch.from_numpy(getattr(found, name)) for name in ARRAYS}
    with failing_as(f"cannot write the model to {folder}", advice), replaced_folder(folder) as place:
        write_bytes(place / WEIGHTS, _weights(model))
        write_bytes(place / PREDICTIONS, tensor_file(arrays, {"names": found.names, "digests": found.digests}))
        write_bytes(place / IMAGES, images_table(model).encode())
        if model.findings:
            write_bytes(place / FINDINGS, findings_table(model.findings).encode("utf-8", errors="surrogateescape"))
        draw_reliability(model, place / DIAGRAM)
        write_bytes(place / CARD, model_card(model).encode())
        digests = {name: file_digest(place / name) for name in FILES}
        write_json(place / CONFIG, sealed({**describe(model), "files": digests}, FORMAT))
    return folder


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
    prompts, text = (
        {name.removeprefix(kind): each for name, each in tensors.items() if name.startswith(kind)}
        for kind in ("prompts/", "text/")
    )
    settings = moved_settings(record["settings"], backbone=backbone, device=device)
    settings["imports"] = allowed_imports(folder, record, imports)
    config = config_of_record(settings, folder / CONFIG)
    calibrator, spec = None, record["calibrator"]["spec"]
    if spec != NONE:
        calibrator = create_calibrator(normalized_spec(spec)).restore(record["calibrator"]["state"])
    kinds = get_type_hints(FittedModel)
    arrays, metadata = read_tensor_file(folder / PREDICTIONS, checked=True, framework="numpy")
    try:
        return FittedModel(
            config=config,
            labels=tuple(record["classes"]["labels"]),
            class_names=tuple(record["classes"]["names"]),
            prompts=prompts,
            text=text,
            calibrator=calibrator,
            calibrator_spec=spec,
            predicted=Predicted(metadata["names"], metadata["digests"], **arrays),
            **{name: restored(kinds[name], record[name]) for name in PLAIN if name in record},
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
        "settings": model.config.record(),
        "imports": import_digests(model.config),
        "calibrator": {"spec": model.calibrator_spec, "state": state},
        **{name: plain(getattr(model, name)) for name in PLAIN},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
    }


def images_table(model: FittedModel) -> str:
    """images.csv: every image, how it was used, what prompts that did not learn from it say, and what is decided."""
    found = model.predicted
    probabilities = model.probabilities(found)
    decisions = model.rule.decide(found.logits.astype(np.float64), probabilities)
    labels = [str(label) for label in model.labels]
    columns = ("image", "used_for", "label", "predicted", "probability", "right", "decision", "sha256")
    rows = []
    for name, digest, label, fold, row, decision in zip(
        found.names, found.digests, found.labels.tolist(), found.fold.tolist(), probabilities, decisions, strict=True
    ):
        top = int(model.rule.chosen(row[None])[0])
        used = USES.get(fold) or f"tuning (fold {fold + 1})"
        right = str(top == label).lower()
        cells = (name, used, labels[label], labels[top], f"{row[top]:.6f}", right, decision, digest)
        rows.append(dict(zip(columns, cells, strict=True)))
    return csv_text(columns, rows)


def _weights(model: FittedModel) -> bytes:
    tensors = {f"prompts/{name}": tensor for name, tensor in model.prompts.items()}
    tensors |= {f"text/{name}": tensor for name, tensor in model.text.items()}
    return tensor_file(tensors, {"backbone": model.backbone["fingerprint"], "tuner": model.config.tuner})

"""A finished run found again by its settings, without torch, so that asking for it again takes a fraction of a second.

A run folder under `out` is the one that is asked for if its record has the same settings, and if the weights, the
images and the imported files are still what they were. Anything else is left to `plan`, which knows for certain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from glob import escape
from pathlib import Path
from typing import Any

from calprompt.clip.identity import identify_backbone
from calprompt.data.validation import normalized_validation
from calprompt.errors import CalpromptError, DamagedFileError
from calprompt.extensions import extension_digest
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import RECORD, Run, is_finished, load_run, read_record
from calprompt.runs.planning import ADDED, TEMPLATE, data_digest, draw_parts, is_current, readable_id
from calprompt.runs.resources import Resources
from calprompt.training_config import TrainingConfig

MEMORY = ".safetensors"  # of data that only torch reads


def find_finished(settings: Mapping[str, Any], out: str | Path, *, resources: Resources | None = None) -> Run | None:
    """The finished run of these settings, if it is there."""
    resources = resources or Resources()
    data = str(settings["data"])
    if data.endswith(MEMORY):
        return None
    dataset = resources.dataset(
        data,
        root=settings.get("root"),
        classes=settings.get("classes"),
        base=settings.get("base"),
        upright=bool(settings.get("exif", False)),
    )
    wanted = settings_record(settings)
    if wanted is None:
        return None
    name = readable_id(wanted["tuner"], dataset.name, wanted["shots"], wanted["training"]["seed"])
    templates = asdict(dataset.templates).values() if dataset.templates else (dataset.template or TEMPLATE,)
    for place in sorted(Path(out).expanduser().glob(f"{escape(name)}-*/{RECORD}")):
        try:
            record = read_record(place.parent)
        except CalpromptError:
            continue  # most likely another run; `run` looks at the folder of this one
        if not _is_same(record, wanted):
            continue
        if wanted["template"] is None and record["template"] not in templates:
            continue
        base, novel, skipped = draw_parts(
            dataset,
            protocol=wanted["protocol"],
            shots=wanted["shots"],
            seed=wanted["training"]["seed"],
            val_shots=wanted["val_shots"],
            validation=wanted["validation"],
            skip_bad=wanted["skip_bad"],
        )
        if data_digest(base, novel, skipped) != record["data"]["digest"]:
            continue
        try:
            return replace(load_run(place.parent), reused=True) if is_finished(place.parent) else None
        except DamagedFileError:
            return None  # it is made again
    return None


def _is_same(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a record is of a finished run of these settings, whose weights and imports are still what they were."""
    if record["status"] != "finished" or not is_current(record) or {**ADDED, **record["config"]} != wanted:
        return False
    identity = identify_backbone(wanted["backbone"], config=wanted["backbone_config"], dtype=wanted["dtype"])
    if identity is None or identity.fingerprint != record["backbone"]["fingerprint"]:
        return False
    preprocessing = {**identity.preprocessing.to_dict(), "crop": wanted["crop"]}
    if preprocessing != record["backbone"].get("preprocessing"):
        return False
    return sorted(map(extension_digest, wanted["imports"])) == record.get("imports", [])


def settings_record(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings as a run's record has them; None if they are not even of the right names and types."""
    training = {field.name: settings[field.name] for field in fields(TrainingConfig) if field.name in settings}
    record: dict[str, Any] = {}
    for field in fields(RunConfig):
        if field.name == "training":
            record["training"] = asdict(TrainingConfig(**training))
        elif field.name in settings:
            record[field.name] = settings[field.name]
        elif field.default is not MISSING:
            record[field.name] = field.default
        elif field.default_factory is not MISSING:
            record[field.name] = field.default_factory()
    record["imports"] = [str(Path(path).expanduser().resolve()) for path in record["imports"]]
    config = record["backbone_config"]
    if isinstance(config, str) and Path(config).expanduser().is_file():
        record["backbone_config"] = str(Path(config).expanduser().resolve())
    try:
        record["validation"] = normalized_validation(record["validation"])
        return dict(json.loads(json.dumps(record, allow_nan=False)))
    except (TypeError, ValueError, AttributeError, CalpromptError):
        return None

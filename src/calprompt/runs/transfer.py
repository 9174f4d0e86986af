"""A trained run on other data: its classes in other images (a shift), or other classes (cross-dataset).

    <run>/transfer/<name>/logits.safetensors   of every part as in the run's own file
                          transfer.json        what it was evaluated on, and metrics; written last

The parts are base and novel, if all classes of the data are the run's, each as the run had them; and all, over all
classes of the data at once, which is what public code evaluates. Of other classes there is only all. Everything is
kept beside what the run has, and nothing of that is touched; what is there already is not computed again.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import calprompt
from calprompt.clip.tokens import fill
from calprompt.data import Dataset, Unreadable, bad_images_error, find_bad, load_dataset, without
from calprompt.data.features import Progress, content, frozen_features, silent
from calprompt.data.load import locate
from calprompt.data.overview import warn_left_out
from calprompt.data.store import FeatureStore
from calprompt.data.tower import EXTRACTION
from calprompt.errors import CalpromptError
from calprompt.files import canonical_json, clear_leftovers, locked, write_bytes, write_json
from calprompt.results import LOGITS, TRANSFER, TRANSFERS, Transfer, read_transfer
from calprompt.runs.evaluate import measure_parts, named_tensors, part_tensors, split_tensors
from calprompt.runs.execute import clock, now
from calprompt.runs.matching import matched_parts
from calprompt.runs.prepare import TEMPLATE, autocasting, check_pixels, few_threads, for_classes
from calprompt.runs.restore import Restored, restore
from calprompt.tensor_files import tensor_file


@dataclass(frozen=True)
class Target:
    """What a run is evaluated on: the test images of a dataset.

    data, root, classes  as `load_dataset` takes them
    name                 what the results are called; None: as the dataset. Others of that name are replaced
    template             of the untuned model; None: the run's if the classes are, else the dataset's for the tuner
    all_classes          take all classes for other ones, whatever their names
    exif, skip_bad       as in `RunConfig`
    """

    data: str
    root: str | None = None
    classes: str | None = None
    name: str | None = None
    template: str | None = None
    all_classes: bool = False
    exif: bool = False
    skip_bad: bool = False

    def __post_init__(self) -> None:
        if self.template is not None:
            fill(self.template, "class")
        if self.name is not None and not file_name(self.name):
            raise CalpromptError(f"a name has letters or digits, got {self.name!r}")


def evaluate_on(
    run: Restored | str | Path, target: Target, *, store: FeatureStore | None = None, progress: Progress = silent
) -> Transfer:
    """Evaluate a run on other data and keep the result in its folder; what was done before is read back.

    store     where image features are kept for other runs
    progress  told what is being done, how much of it is done, of how much, and a word on how it goes
    """
    restored = run if isinstance(run, Restored) else restore(run)
    dataset, skipped = _load(target, progress)
    check_pixels(restored.config, dataset)
    dataset.test.images.check(restored.backbone)
    matched = None if target.all_classes else matched_parts(dataset, restored.class_names)
    parts = _parts(dataset, matched or {})
    template = target.template or _template(restored, dataset, same_classes=matched is not None)
    told = {
        "class_names": dataset.class_names,
        "parts": parts,
        "images": content({"test": dataset.test}, progress),
        "skipped": sorted(skipped),
    }
    record: dict[str, Any] = {
        "name": target.name or dataset.name,
        "fingerprint": _fingerprint(restored, template, told),
        "run": restored.run.record["fingerprint"],
        "template": template,
        "data": {
            "name": dataset.name,
            "images": len(dataset.test),
            "class_names": {part: [dataset.class_names[label] for label in labels] for part, labels in parts.items()},
            "skipped": skipped,
        },
        "device": restored.config.device,
        "version": calprompt.__version__,
    }
    folder = restored.run.folder / TRANSFERS / file_name(record["name"])
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), autocasting(restored.backbone, restored.config):
        clear_leftovers(folder)
        found = read_transfer(folder)
        if found is not None and found.record["fingerprint"] == record["fingerprint"]:
            return Transfer(folder, found.record, reused=True)
        record |= {"started": now(), "timings": {}}
        (folder / TRANSFER).unlink(missing_ok=True)  # so that it never stands beside logits of something else
        _evaluate(restored, dataset, parts, record, folder, store, progress)
        write_json(folder / TRANSFER, record)
    return Transfer(folder, record)


def _load(target: Target, progress: Progress) -> tuple[Dataset, dict[str, str]]:
    """The dataset, and the images left out of it."""
    dataset = load_dataset(target.data, root=target.root, classes=target.classes, upright=target.exif)
    warn_left_out(dataset, locate(target.data, target.root))
    bad = find_bad([dataset.test], thorough=target.skip_bad, progress=progress)
    if bad and not target.skip_bad:
        raise bad_images_error(bad)
    return (without(dataset, bad) if bad else dataset), bad


def _parts(dataset: Dataset, matched: dict[str, list[int]]) -> dict[str, list[int]]:
    """Labels by part: those that have two classes or more and something to test on, and all, unless one is that."""
    every = list(range(len(dataset.class_names)))
    if len(every) < 2:
        raise CalpromptError(f"{dataset.name} has one class; there must be two or more to tell apart")
    tested = set(dataset.test.labels)
    parts = {part: labels for part, labels in matched.items() if len(labels) > 1 and tested & set(labels)}
    return parts if every in parts.values() else {**parts, "all": every}


def _template(restored: Restored, dataset: Dataset, same_classes: bool) -> str:
    """The run's for its own classes; for others, the dataset's in the tuner's table, or the usual one."""
    if same_classes:
        return restored.tuner.template
    return dataset.template_of(restored.tuner.template_table) or TEMPLATE


def _fingerprint(restored: Restored, template: str, told: dict[str, Any]) -> str:
    """sha256 of all that the result depends on besides the settings of the run."""
    everything = {
        "run": restored.run.record["fingerprint"],
        "prompts": restored.digest,
        "preprocessing": restored.backbone.preprocessing.to_dict(),
        "device": restored.config.device,
        "template": template,
        "data": hashlib.sha256(canonical_json(told)).hexdigest(),
        "extraction": EXTRACTION,
        "version": calprompt.__version__,
    }
    return hashlib.sha256(canonical_json(everything)).hexdigest()


def _evaluate(
    restored: Restored,
    dataset: Dataset,
    parts: dict[str, list[int]],
    record: dict[str, Any],
    folder: Path,
    store: FeatureStore | None,
    progress: Progress,
) -> None:
    """Write the logits of all parts, and the metrics into the record."""
    backbone, names, template = restored.backbone, dataset.class_names, record["template"]
    with few_threads(backbone):
        tuner, reason = for_classes(restored.config, restored.tuner, names, template)
        frozen = backbone.zero_shot(names, template) if tuner is None else tuner.frozen_text
    unreadable = Unreadable()
    with clock(record["timings"], "features"):
        features = frozen_features(
            backbone,
            dataset.test.images,
            unreadable=unreadable,
            store=store,
            progress=progress,
            what=f"{record['name']} features",
        )[0]
        unreadable.report()
    with clock(record["timings"], "evaluate"), few_threads(backbone):
        found = split_tensors(backbone, tuner, frozen, dataset.test, features)
        cut = {part: part_tensors(found, labels) for part, labels in parts.items()}
        record["metrics"] = measure_parts(cut, reason)
    about = {"class_names": record["data"]["class_names"], "logit_scale": float(backbone.logit_scale)}
    write_bytes(folder / LOGITS, tensor_file(named_tensors(cut), about))
    record["ended"] = now()


def file_name(name: str) -> str:
    """A name as a folder may have it.

    >>> file_name("my sketches"), file_name("..")
    ('my_sketches', '')
    """
    return re.sub(r"[^\w.-]+", "_", name).strip(".")

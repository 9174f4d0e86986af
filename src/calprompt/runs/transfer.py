"""A trained run on other data: its classes in other images (a shift), or other classes (cross-dataset).

    <run>/transfer/<name>/logits.safetensors   of every part as in the run's own file
                          transfer.json        what it was evaluated on, and metrics; written last

The parts are base and novel, if all classes of the data are the run's, each as the run had them; and all, over all
classes of the data at once, which is what public code evaluates. Of other classes there is only all. Everything is
kept beside what the run has, and nothing of that is touched; what is there already is not computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import calprompt
from calprompt.class_names import normalized_name
from calprompt.data.checks import UnreadableImages, drop_images, find_unreadable, image_digests, warn_left_out
from calprompt.data.dataset import Dataset
from calprompt.data.load import locate
from calprompt.errors import CalpromptError, DataError, Parameter
from calprompt.features import EXTRACTION
from calprompt.features.store import FeatureStore
from calprompt.files import clear_leftovers, clear_stale_lock, json_digest, locked, write_bytes
from calprompt.progress import Progress, silent
from calprompt.runs.config import Target
from calprompt.runs.execute import clock, now
from calprompt.runs.folder import LOGITS, TRANSFER, TRANSFERS, Transfer, read_transfer, verify_file, write_transfer
from calprompt.runs.planning import FIRST_VERSION, RESULTS, TEMPLATE, check_pixels
from calprompt.runs.preparation import (
    image_names,
    logits_file,
    measure_parts,
    part_tensors,
    split_tensors,
    tuner_for_classes,
)
from calprompt.runs.resources import Resources
from calprompt.runs.restoring import Restored, restore
from calprompt.text import os_problem, shorten, slug


def evaluate_on(
    run: Restored | str | Path,
    target: Target,
    *,
    resources: Resources | None = None,
    store: FeatureStore | None = None,
    progress: Progress = silent,
) -> Transfer:
    """Evaluate a run on other data and keep the result in its folder; what was done before is read back.

    Args:
        run: A restored run, or its folder.
        target: What to evaluate it on.
        resources: What is loaded already.
        store: Where image features are kept for other runs, if no `resources` are given.
        progress: Callback for progress.
    """
    resources = resources or Resources(store=store)
    restored = run if isinstance(run, Restored) else restore(run, resources=resources)
    dataset = resources.dataset(target.data, root=target.root, classes=target.classes, upright=target.exif)
    warn_left_out(dataset, locate(target.data, target.root))
    skipped = find_unreadable([dataset.test], progress=progress) if target.skip_bad else {}
    dataset = drop_images(dataset, skipped) if skipped else dataset
    check_pixels(restored.config.tuner, dataset)
    dataset.test.images.check(restored.backbone)
    matched = None if target.all_classes else matched_parts(dataset, restored.class_names)
    parts = _parts(dataset, matched or {})
    template = target.template or restored.tuner.template
    if target.template is None and matched is None:  # the run's is for its own classes
        template = dataset.template_of(restored.tuner.template_table) or TEMPLATE
    digest = {
        "class_names": dataset.class_names,
        "parts": parts,
        "images": image_digests({"test": dataset.test}, progress),
        "skipped": sorted(skipped),
    }
    fingerprints = _fingerprints(restored, template, digest)
    record: dict[str, Any] = {
        "name": target.name or dataset.name,
        "fingerprint": fingerprints[0],
        "run": restored.run.record["fingerprint"],
        "template": template,
        "data": {
            "name": dataset.name,
            "images": len(dataset.test),
            "class_names": {part: [dataset.class_names[label] for label in labels] for part, labels in parts.items()},
            "skipped": skipped,
        },
        "device": restored.config.device,
        "versions": {"calprompt": calprompt.__version__},
    }
    folder = restored.run.folder / TRANSFERS / slug(record["name"])
    found = read_transfer(folder)
    if found is not None and found.record["fingerprint"] in fingerprints:
        verify_file(folder, LOGITS, found.record)
        clear_stale_lock(folder)
        return Transfer(folder, found.record, reused=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            clear_leftovers(folder)
            record |= {"started": now(), "timings": {}}
            (folder / TRANSFER).unlink(missing_ok=True)  # so that it never stands beside logits of something else
            _evaluate(restored, dataset, parts, record, folder, resources, progress)
            record = write_transfer(folder, record)
    except OSError as error:
        raise CalpromptError(
            f"cannot write to the run, {os_problem(error)}; make room there, or copy {restored.run.folder} to a folder "
            "of your own"
        ) from error
    return Transfer(folder, record)


def _parts(dataset: Dataset, matched: dict[str, list[int]]) -> dict[str, list[int]]:
    """Labels by part: those that have two classes or more and something to test on, and all, unless one is that."""
    every = list(range(len(dataset.class_names)))
    if len(every) < 2:
        raise DataError(f"{dataset.name} has one class; there must be two or more to tell apart")
    tested = set(dataset.test.labels)
    parts = {part: labels for part, labels in matched.items() if len(labels) > 1 and tested & set(labels)}
    return parts if every in parts.values() else {**parts, "all": every}


def _fingerprints(restored: Restored, template: str, data: dict[str, Any]) -> list[str]:
    """sha256 of everything the result depends on but the run's settings, as this and earlier versions computed it."""
    payload = {
        "run": restored.run.record["fingerprint"],
        "prompts": restored.digest,
        "preprocessing": restored.backbone.preprocessing.to_dict(),
        "device": restored.config.device,
        "template": template,
        "data": json_digest(data),
        "extraction": EXTRACTION,
    }
    editions: list[dict[str, Any]] = [{"results": RESULTS}] + ([{"version": FIRST_VERSION}] if RESULTS == 1 else [])
    return [json_digest(payload | edition) for edition in editions]


def _evaluate(
    restored: Restored,
    dataset: Dataset,
    parts: dict[str, list[int]],
    record: dict[str, Any],
    folder: Path,
    resources: Resources,
    progress: Progress,
) -> None:
    """Write the logits of all parts, and the metrics into the record."""
    backbone, names, template = restored.backbone, dataset.class_names, record["template"]
    with backbone.limited_threads():
        tuner, reason = tuner_for_classes(restored.config, restored.tuner, names, template)
        frozen = backbone.zero_shot(names, template) if tuner is None else tuner.frozen_text
    unreadable = UnreadableImages()
    with clock(record["timings"], "features"):
        what = f"{record['name']} features"
        features = resources.features(
            backbone, dataset.test.images, unreadable=unreadable, progress=progress, what=what
        )[0]
        unreadable.report()
    with clock(record["timings"], "evaluate"), backbone.limited_threads():
        found = split_tensors(backbone, tuner, frozen, dataset.test, features)
        cut = {part: part_tensors(found, labels) for part, labels in parts.items()}
        tensors = {part: tensors for part, (tensors, _) in cut.items()}
        record["metrics"] = measure_parts(tensors, reason)
    every = image_names(dataset.test)
    images = {part: [every[row] for row in rows] for part, (_, rows) in cut.items()}
    write_bytes(folder / LOGITS, logits_file(tensors, record["data"]["class_names"], images, backbone))
    record["ended"] = now()


def matched_parts(target: Dataset, of_run: Mapping[str, Sequence[str]]) -> dict[str, list[int]] | None:
    """Labels of the target's classes by the run's part (base and novel, or all) that has them.

    None if they are other classes. If most of them are the run's, the rest is taken for a mistake.
    """
    places: dict[str, set[str]] = {}
    for part, names in of_run.items():
        for name in names:
            places.setdefault(normalized_name(name), set()).add(part)
    others = [name for name in target.class_names if normalized_name(name) not in places]
    known = len(target.class_names) - len(others)
    if others and known > len(others):
        raise DataError(
            f"{known} of the {len(target.class_names)} classes of {target.name} are classes of the run, and these are "
            f"not: {shorten(others)}. Name them as in the run with ",
            Parameter("classes", "FILE"),
            ", or take all of them for other classes with ",
            Parameter("all_classes", True),
        )
    if others:
        return None
    found: dict[str, list[int]] = {part: [] for part in of_run}
    for label, name in enumerate(target.class_names):
        found[_part(target, label, places[normalized_name(name)])].append(label)
    return found


def _part(target: Dataset, label: int, parts: set[str]) -> str:
    """The one part that has the class; of a name that two classes of the run share, as the target itself is cut."""
    if len(parts) == 1:
        return next(iter(parts))
    if target.base is None:
        raise DataError(
            f"the run has a base and a novel class of the name {target.class_names[label]!r}, and {target.name} does "
            "not say which is meant; take all of its classes for other ones with ",
            Parameter("all_classes", True),
        )
    return "base" if label in target.base else "novel"

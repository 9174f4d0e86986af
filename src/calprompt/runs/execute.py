"""A run: one backbone, dataset, tuner, objective and seed, trained, evaluated and kept in a folder.

    plan ── finished already? ── yes ── read it back
         └─ no ── prepare ── features (── anchor) ── train (checkpoint after every epoch) ── evaluate ── write

The fingerprint is part of the folder's name, so a finished run is found again, and another setting never lands in it.
`calprompt.runs.folder` says what is in the folder.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calprompt.clip.backbone import unit
from calprompt.data.checks import UnreadableImages, find_unreadable
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, NonFiniteLossError, Parameter
from calprompt.features.frozen import FeatureBank, PixelBank
from calprompt.features.store import FeatureStore
from calprompt.files import clear_leftovers, clear_stale_lock, failing_as, locked, write_bytes
from calprompt.hardware import Stopwatch, peak_device_memory, peak_memory, reset_peak_memory
from calprompt.losses import Objective
from calprompt.progress import Progress, silent
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import (
    CHECKPOINT,
    HISTORY,
    LOGITS,
    PROMPTS,
    RECORD,
    STEPS,
    Run,
    is_finished,
    load_run,
    read_history,
    read_record,
    read_steps,
    rows_digest,
    write_metrics,
    write_record,
    write_rows,
)
from calprompt.runs.planning import RunPlan, plan
from calprompt.runs.preparation import (
    TEXT_KINDS,
    Prepared,
    describe,
    fit_anchor,
    image_names,
    logits_file,
    measure_parts,
    prepare,
    split_tensors,
)
from calprompt.runs.resources import Resources
from calprompt.sealed_files import read_tensor_file, tensor_file
from calprompt.text import os_problem
from calprompt.training import TrainingSet, TrainingState, train
from calprompt.tuners import Tuner


def run(
    config: RunConfig | RunPlan,
    out: str | Path = "runs",
    *,
    resources: Resources | None = None,
    store: FeatureStore | None = None,
    progress: Progress = silent,
    checkpoint_seconds: float = 0.0,
) -> Run:
    """Train and evaluate into a folder of its own; a finished run is read back, a killed one continued.

    Args:
        config: The settings of the run, or its plan, whose images may come from anywhere.
        out: The run's folder goes into this one.
        resources: Backbones, datasets and features that are loaded already, and that the next run may use.
        store: Where image features are kept on disk for other runs, if no `resources` are given; the result is the
            same without, bit for bit.
        progress: Callback for progress.
        checkpoint_seconds: Training leaves a checkpoint after the first epoch that ends so long after the last one.

    Returns:
        The finished run; its `reused` says whether it was found finished.

    Raises:
        CalpromptError: for whatever is wrong with the settings, the data or the folder.
    """
    resources = resources or Resources(store=store)
    timings: dict[str, float] = {}
    reset_peak_memory()
    with clock(timings, "load"):
        planned = config if isinstance(config, RunPlan) else plan(config, resources=resources, progress=progress)
    folder = planned.locate(out)
    known = (planned.fingerprint, *planned.earlier_fingerprints)
    if (folder / RECORD).is_file() and read_record(folder)["fingerprint"] not in known:
        raise CalpromptError(f"{folder} holds another run than its name says; move it away or choose another folder")
    if _is_usable_run(folder):
        with suppress(OSError):  # killed between its last two steps, or a read-only folder
            (folder / CHECKPOINT).unlink(missing_ok=True)
        clear_stale_lock(folder)
        return replace(load_run(folder), reused=True)
    made = [place for place in (folder, folder.parent) if not place.exists()]
    _make_folder(folder)
    try:
        with clock(timings, "load"):
            prepared = prepare(planned, resources=resources, progress=progress)
        return _Execution(prepared, folder, resources, timings, progress, checkpoint_seconds).run()
    except OSError as error:
        if not str(error.filename or "").startswith(str(folder)):
            raise
        raise CalpromptError(
            f"cannot write to the run, {os_problem(error)}; make room there, or choose another place with ",
            Parameter("out", "FOLDER"),
        ) from error
    finally:
        with suppress(OSError):  # remove empty folders of a run that did not begin
            for place in made:
                place.rmdir()


@dataclass
class _Execution:
    """A run in its folder, which no other process may write to meanwhile."""

    prepared: Prepared
    folder: Path
    resources: Resources
    timings: dict[str, float]
    progress: Progress
    checkpoint_seconds: float

    def run(self) -> Run:
        folder = self.folder
        with locked(folder):
            clear_leftovers(folder)
            if _is_usable_run(folder, stacklevel=4):  # finished by the process that held the lock
                return replace(load_run(folder), reused=True)
            record = describe(self.prepared) | {"status": "running", "started": now(), "timings": self.timings}
            write_record(folder, record)
            try:
                metrics = self.work(record)
            except Exception as error:
                record |= {"status": "failed", "reason": str(error) or type(error).__name__, "ended": now()}
                with suppress(OSError):  # such as a full disk, which is then what is raised already
                    write_record(folder, record)
                raise
            known = [each for each in (record.get("peak_memory"), peak_memory()) if each is not None]
            record |= {"status": "finished", "ended": now(), "peak_memory": max(known, default=None)}
            record = write_record(folder, record)
            (folder / CHECKPOINT).unlink(missing_ok=True)
            return Run(folder, record, metrics)

    def work(self, record: dict[str, Any]) -> dict[str, Any]:
        """Train and evaluate in a folder that is empty or has a checkpoint; returns the metrics."""
        folder, planned = self.folder, self.prepared.plan
        with clock(self.timings, "features"):
            if planned.config.anchor:
                self.anchor(record)
            data, features = self.images()
        if data is not None:
            record["peak_memory"] = peak_memory()  # until now: that of training is measured for itself
            reset_peak_memory(planned.config.device)
            stopwatch = Stopwatch()
            with clock(self.timings, "train"), self.prepared.backbone.limited_threads():
                record["resumed_after_epoch"] = self.train(data, stopwatch)
            record["training"] = stopwatch.record() | {
                "peak_memory": peak_memory(),
                "peak_device_memory": peak_device_memory(planned.config.device),
            }
        else:
            write_rows(folder, HISTORY, [])
        with clock(self.timings, "evaluate"), self.prepared.backbone.limited_threads():
            parts, metrics = _evaluate(self.prepared, features)
        write_bytes(folder / PROMPTS, prompts_file(self.prepared, self.prepared.tuner.state_dict()))
        classes = {name: part.class_names for name, (part, _) in planned.evaluated.items()}
        images = {name: image_names(split) for name, (_, split) in planned.evaluated.items()}
        write_bytes(folder / LOGITS, logits_file(parts, classes, images, self.prepared.backbone))
        write_metrics(folder, metrics)
        return metrics

    def anchor(self, record: dict[str, Any]) -> None:
        """Take the logit scale that suits the untuned model on the training images; the record says which."""
        prepared, unreadable = self.prepared, UnreadableImages()
        split = prepared.plan.base.train
        features = self.resources.features(
            prepared.backbone, split.images, unreadable=unreadable, progress=self.progress, what="anchor features"
        )[0]
        unreadable.report()
        with prepared.backbone.limited_threads():
            cosines = unit(features.double().cpu()) @ prepared.tuner.frozen_text.double().cpu().T
            anchor = fit_anchor(cosines, split.labels, float(prepared.backbone.logit_scale))
        if anchor.end is not None:
            warnings.warn(anchor.warning, stacklevel=2)
        backbone = prepared.backbone.view(logit_scale=anchor.logit_scale)
        record["anchor"] = asdict(anchor) | {"logit_scale": float(backbone.logit_scale)}  # as it is used, in float32
        self.prepared = replace(prepared, backbone=backbone, tuner=prepared.tuner.with_backbone(backbone))

    def images(self) -> tuple[TrainingSet | None, dict[str, Tensor]]:
        """The training set, if any, and frozen features of evaluated splits; unreadable files are reported here."""
        unreadable, backbone = UnreadableImages(), self.prepared.backbone
        tuner, planned = self.prepared.tuner, self.prepared.plan
        split, labels = planned.base.train, torch.tensor(planned.base.train.labels)
        features = partial(self.resources.features, backbone, unreadable=unreadable, progress=self.progress)
        data: TrainingSet | None = None
        if tuner.learns and not tuner.needs_pixels:
            bank = FeatureBank(features(split.images, planned.views, what="training features"), labels)
            data = bank.to(backbone.device)
        elif tuner.learns:
            frozen = None
            if tuner.uses_frozen_images or Objective.parse(planned.config.loss).uses_zero_shot:
                frozen = features(split.images, planned.views, what="training features")
            else:
                unreadable.reasons |= find_unreadable([split], progress=self.progress)
            data = PixelBank(split.images, labels, backbone.preprocessing, planned.views, frozen)
        evaluated = {
            name: features(split.images, what=f"{name} features")[0] for name, (_, split) in planned.evaluated.items()
        }
        unreadable.report()
        return data, evaluated

    def train(self, data: TrainingSet, stopwatch: Stopwatch) -> int:
        """Train from the checkpoint, if there is one, leaving others; returns after which epoch it began."""
        prepared, folder, progress = self.prepared, self.folder, self.progress
        tuner, config, planned = prepared.tuner, prepared.config.training, prepared.plan
        state, history = read_checkpoint(folder, planned.fingerprint)
        known = [{name: tensor.clone() for name, tensor in tuner.state_dict().items()}]
        if state.epoch:
            known.append(state.prompts)
        written = time.monotonic()

        def keep(state: TrainingState, row: dict[str, float]) -> None:
            nonlocal written
            history.append({**row, "epoch": state.epoch})
            if state.steps or time.monotonic() >= written + self.checkpoint_seconds:
                write_checkpoint(folder, state, history, planned.fingerprint)
                written = time.monotonic()
            known.append(state.prompts)
            del known[1:-2]
            progress("training", state.epoch, config.epochs, f"loss {row['loss']:.4f}")

        progress("training", state.epoch, config.epochs, "")
        try:
            objective = Objective.parse(prepared.config.loss)
            train(tuner, data, objective, config, state=state, after_epoch=keep, stopwatch=stopwatch)
        except NonFiniteLossError:
            good = next((prompts for prompts in reversed(known[1:]) if _are_usable(tuner, prompts)), known[0])
            write_bytes(folder / PROMPTS, prompts_file(prepared, good))
            (folder / CHECKPOINT).unlink(missing_ok=True)
            raise
        if self.checkpoint_seconds:
            write_rows(folder, HISTORY, history)
        return state.epoch


def _is_usable_run(folder: Path, stacklevel: int = 3) -> bool:
    """Whether a run is finished and all of its files are what was written; a damaged one is named and made again."""
    try:
        return is_finished(folder)
    except NewerFormatError:
        raise
    except DamagedFileError as error:
        if not (folder / RECORD).is_file() or str(folder / RECORD) in str(error):
            raise
        warnings.warn(f"{str(error).partition(';')[0]}; it is computed again", stacklevel=stacklevel)
        return False


def _make_folder(folder: Path) -> None:
    advice = ("; choose another place with ", Parameter("out", "FOLDER"))
    with failing_as(f"cannot write to the folder {folder}", *advice):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable.tmp"
        probe.touch()
        probe.unlink()


@torch.no_grad()
def _are_usable(tuner: Tuner, prompts: Mapping[str, Tensor]) -> bool:
    tuner.load_state_dict(dict(prompts))
    return bool(torch.isfinite(tuner.text_features()).all())


def _evaluate(
    prepared: Prepared, features: Mapping[str, Tensor]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Tensors and metrics of every evaluated split; of novel classes, only those of the untuned model if need be."""
    backbone, planned, parts = prepared.backbone, prepared.plan, {}
    tuned: dict[str, Tuner | None] = {name: prepared.tuner for name in planned.evaluated if name != "novel"}
    if planned.novel is not None and prepared.novel_reason is None:
        tuned["novel"] = prepared.tuner.with_classes(planned.novel.class_names)
    for name, (part, split) in planned.evaluated.items():
        tuner = tuned.get(name)
        frozen = backbone.zero_shot(part.class_names, planned.template) if tuner is None else tuner.frozen_text
        parts[name] = split_tensors(backbone, tuner, frozen, split, features[name])
    metrics = measure_parts(parts, prepared.novel_reason)
    for kind in TEXT_KINDS:  # that of the classes trained on, again
        parts.get("val", {}).pop(kind, None)
    return parts, metrics


def prompts_file(prepared: Prepared, prompts: Mapping[str, Tensor]) -> bytes:
    """Prompts, with what it takes to use them again."""
    metadata: dict[str, Any] = {
        "tuner": prepared.config.tuner,
        "options": dict(prepared.config.options),
        "class_names": prepared.plan.base.class_names,
        "template": prepared.plan.template,
        "backbone": prepared.backbone.fingerprint,
    }
    if prepared.config.anchor:
        metadata["logit_scale"] = float(prepared.backbone.logit_scale)
    return tensor_file(prompts, metadata)


@contextmanager
def clock(timings: dict[str, float], phase: str) -> Iterator[None]:
    """Add how many seconds something took, also if it fails."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = round(timings.get(phase, 0.0) + time.perf_counter() - start, 3)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


KINDS = ("prompts", "momenta", "tuner", "scale")  # the tensors of a `TrainingState`

History = list[dict[str, float]]


def write_checkpoint(folder: Path, state: TrainingState, history: History, fingerprint: str) -> None:
    """Write the history and the diagnosed steps, then the checkpoint: they may be ahead of it, never behind."""
    digest = write_rows(folder, HISTORY, history)
    tensors = {f"{kind}/{name}": tensor for kind in KINDS for name, tensor in getattr(state, kind).items()}
    metadata = {"epoch": state.epoch, "fingerprint": fingerprint, "history": digest}
    if state.steps:
        metadata["steps"] = write_rows(folder, STEPS, state.steps)
    write_bytes(folder / CHECKPOINT, tensor_file(tensors, metadata))


def read_checkpoint(folder: Path, fingerprint: str) -> tuple[TrainingState, History]:
    """The state to go on from and the history up to it.

    Both are empty if there is no checkpoint of this run, or if its history or its diagnosed steps are lost or damaged:
    training starts over.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return TrainingState(), []
    tensors, metadata = read_tensor_file(path, checked=True)
    if metadata["fingerprint"] != fingerprint:
        return TrainingState(), []
    states = {
        kind: {name.removeprefix(f"{kind}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
        for kind in KINDS
    }
    state = TrainingState(metadata["epoch"], states["prompts"], states["momenta"], states["tuner"], states["scale"])
    try:
        history = [row for row in read_history(folder) if row["epoch"] <= state.epoch]
        if "steps" in metadata:
            state.steps = [row for row in read_steps(folder) if row["epoch"] <= state.epoch]
    except ValueError:
        return TrainingState(), []
    lost = [row["epoch"] for row in history] != list(range(1, state.epoch + 1))
    lost = lost or rows_digest(HISTORY, history) != metadata["history"]
    if lost or ("steps" in metadata and rows_digest(STEPS, state.steps) != metadata["steps"]):
        return TrainingState(), []
    return state, history

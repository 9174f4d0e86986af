"""A run: one backbone, dataset, tuner, objective and seed, trained and evaluated into a folder.

    <out>/<id>/run.json              config, versions, fingerprint, timings, status
               prompts.safetensors   what was learned
               metrics.json          base and novel, or all; val; and zero_shot of each
               history.jsonl         a line an epoch
               logits.safetensors    of every evaluated split: logits, zero_shot_logits, labels; text, frozen_text
               checkpoint.safetensors   while it trains: a killed run goes on from it to the same bits
               transfer/             what it was evaluated on afterwards, see `calprompt.runs.transfer`

The fingerprint is part of the folder's name, so a finished run is found again, and another setting never lands in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calprompt.data import FeatureBank, PixelBank, Unreadable, find_bad
from calprompt.data.features import Progress, frozen_features, silent
from calprompt.data.store import FeatureStore
from calprompt.errors import CalpromptError
from calprompt.files import clear_leftovers, locked, write_bytes, write_json
from calprompt.losses import Objective
from calprompt.results import (
    CHECKPOINT,
    HISTORY,
    LOGITS,
    METRICS,
    PROMPTS,
    RECORD,
    Run,
    is_complete,
    load_run,
    read_history,
    read_record,
)
from calprompt.runs.checkpoint import checkpoint_file, read_checkpoint, tensor_file
from calprompt.runs.config import RunConfig
from calprompt.runs.evaluate import TEXT_KINDS, measure_parts, named_tensors, split_tensors
from calprompt.runs.prepare import Prepared, autocasting, describe, few_threads, prepare
from calprompt.train import NonFiniteLossError, TrainingSet, TrainingState, train
from calprompt.tuners import Tuner


def run(
    config: RunConfig, out: str | Path = "runs", *, store: FeatureStore | None = None, progress: Progress = silent
) -> Run:
    """Train and evaluate into a folder of its own under `out`; a finished run is read back, a killed one goes on.

    store     where image features are kept for other runs; the result is the same without, bit for bit
    progress  told what is being done, how much of it is done, of how much, and a word on how it goes
    """
    timings: dict[str, float] = {}
    with clock(timings, "load"):
        prepared = prepare(config, progress=progress)
    folder = Path(out).expanduser() / prepared.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalpromptError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another place (--out FOLDER)"
        ) from error
    with locked(folder), autocasting(prepared.backbone, config):
        clear_leftovers(folder)
        if (folder / RECORD).is_file() and read_record(folder)["fingerprint"] != prepared.fingerprint:
            raise CalpromptError(
                f"{folder} holds another run than its name says; move it away or choose another folder"
            )
        if is_complete(folder):
            (folder / CHECKPOINT).unlink(missing_ok=True)
            return replace(load_run(folder), reused=True)
        record = describe(prepared) | {"status": "running", "started": now(), "timings": timings}
        write_json(folder / RECORD, record)
        try:
            metrics = _work(prepared, folder, record, store, progress)
        except Exception as error:
            record |= {"status": "failed", "reason": str(error) or type(error).__name__, "ended": now()}
            with suppress(OSError):  # such as a full disk, which is then what is raised already
                write_json(folder / RECORD, record)
            raise
        record |= {"status": "finished", "ended": now()}
        write_json(folder / RECORD, record)
        (folder / CHECKPOINT).unlink(missing_ok=True)
        return Run(folder, record, metrics)


def _work(
    prepared: Prepared, folder: Path, record: dict[str, Any], store: FeatureStore | None, progress: Progress
) -> dict[str, Any]:
    """Everything between an empty folder, or one with a checkpoint, and a finished one; returns the metrics."""
    timings = record["timings"]
    learns = any(True for _ in prepared.tuner.parameters())
    with clock(timings, "features"):
        data, features = _images(prepared, learns, store, progress)
    with clock(timings, "train"), few_threads(prepared.backbone):
        if data is not None:
            record["resumed_after_epoch"] = _train(prepared, data, folder, progress)
        else:
            write_bytes(folder / HISTORY, b"")
    with clock(timings, "evaluate"), few_threads(prepared.backbone):
        tensors, metrics = _evaluate(prepared, features)
    write_bytes(folder / PROMPTS, prompts_file(prepared, prepared.tuner.state_dict()))
    names = {name: part.class_names for name, (part, _) in prepared.evaluated.items()}
    scale = float(prepared.backbone.logit_scale)
    write_bytes(folder / LOGITS, tensor_file(tensors, {"class_names": names, "logit_scale": scale}))
    write_json(folder / METRICS, metrics)
    return metrics


def _images(
    prepared: Prepared, learns: bool, store: FeatureStore | None, progress: Progress
) -> tuple[TrainingSet | None, dict[str, Tensor]]:
    """What is trained on, if anything, and frozen features of what is evaluated; unreadable files are reported here."""
    unreadable = Unreadable()
    backbone, split = prepared.backbone, prepared.base.train
    read = partial(frozen_features, backbone, unreadable=unreadable, store=store, progress=progress)
    data: TrainingSet | None = None
    tuner, labels = prepared.tuner, torch.tensor(split.labels)
    if learns and not tuner.sees_pixels:
        data = FeatureBank(read(split.images, prepared.views, what="training features"), labels)
    elif learns and (tuner.uses_frozen_images or Objective.parse(prepared.config.loss).uses_zero_shot):
        views = read(split.images, prepared.views, what="training features")
        data = PixelBank(split.images, labels, backbone.preprocessing, prepared.views, views)
    elif learns:
        bad = find_bad([split], progress=progress)
        unreadable.found |= {f"{name} ({reason})" for name, reason in bad.items()}
        data = PixelBank(split.images, labels, backbone.preprocessing, prepared.views)
    features = {name: read(split.images, what=f"{name} features")[0] for name, (_, split) in prepared.evaluated.items()}
    unreadable.report()
    return data, features


def _train(prepared: Prepared, data: TrainingSet, folder: Path, progress: Progress) -> int:
    """Train from the checkpoint, if there is one, leaving one after every epoch; returns after which epoch it began."""
    tuner, config = prepared.tuner, prepared.config.training
    state, history = _begin(folder, prepared.fingerprint)
    known = [{name: tensor.clone() for name, tensor in tuner.state_dict().items()}]
    if state.epoch:
        known.append(state.prompts)

    def keep(state: TrainingState, row: dict[str, float]) -> None:
        history.append({**row, "epoch": state.epoch})
        # the history first: it may be ahead of the checkpoint, never behind
        write_bytes(folder / HISTORY, "".join(json.dumps(row) + "\n" for row in history).encode())
        write_bytes(folder / CHECKPOINT, checkpoint_file(state, prepared.fingerprint))
        known.append(state.prompts)
        del known[1:-2]
        progress("training", state.epoch, config.epochs, f"loss {row['loss']:.4f}")

    progress("training", state.epoch, config.epochs, "")
    try:
        train(tuner, data, Objective.parse(prepared.config.loss), config, state=state, after_epoch=keep)
    except NonFiniteLossError:
        good = next((prompts for prompts in reversed(known[1:]) if _is_usable(tuner, prompts)), known[0])
        write_bytes(folder / PROMPTS, prompts_file(prepared, good))
        (folder / CHECKPOINT).unlink(missing_ok=True)
        raise
    return state.epoch


def _begin(folder: Path, fingerprint: str) -> tuple[TrainingState, list[dict[str, float]]]:
    """The checkpoint and its epochs' records; if these are lost or damaged, training starts over."""
    state = read_checkpoint(folder / CHECKPOINT, fingerprint)
    try:
        history = [row for row in read_history(folder) if row["epoch"] <= state.epoch]
    except CalpromptError:
        return TrainingState(), []
    whole = [row["epoch"] for row in history] == list(range(1, state.epoch + 1))
    return (state, history) if whole else (TrainingState(), [])


@torch.no_grad()
def _is_usable(tuner: Tuner, prompts: Mapping[str, Tensor]) -> bool:
    tuner.load_state_dict(dict(prompts))
    return bool(torch.isfinite(tuner.text_features()).all())


def _evaluate(prepared: Prepared, features: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metrics of every evaluated split; of novel classes, only those of the untuned model if need be."""
    backbone, parts = prepared.backbone, {}
    tuned: dict[str, Tuner | None] = {name: prepared.tuner for name in prepared.evaluated if name != "novel"}
    if prepared.novel is not None and prepared.novel_reason is None:
        tuned["novel"] = prepared.tuner.with_classes(prepared.novel.class_names)
    for name, (part, split) in prepared.evaluated.items():
        tuner = tuned.get(name)
        frozen = backbone.zero_shot(part.class_names, prepared.template) if tuner is None else tuner.frozen_text
        parts[name] = split_tensors(backbone, tuner, frozen, split, features[name])
    metrics = measure_parts(parts, prepared.novel_reason)
    for kind in TEXT_KINDS:  # that of the classes trained on, again
        parts.get("val", {}).pop(kind, None)
    return named_tensors(parts), metrics


def prompts_file(prepared: Prepared, prompts: Mapping[str, Tensor]) -> bytes:
    """Prompts, with what it takes to use them again."""
    about = {
        "tuner": prepared.config.tuner,
        "options": dict(prepared.config.options),
        "class_names": prepared.base.class_names,
        "template": prepared.template,
        "backbone": prepared.backbone.fingerprint,
    }
    return tensor_file(prompts, about)


@contextmanager
def clock(timings: dict[str, float], phase: str) -> Iterator[None]:
    """Note how many seconds something took, also if it fails."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = round(time.perf_counter() - start, 3)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")

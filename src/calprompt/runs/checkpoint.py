"""The state that a killed run goes on from, on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

from calprompt.files import write_bytes
from calprompt.runs.folder import (
    CHECKPOINT,
    history_digest,
    read_history,
    read_steps,
    steps_bytes,
    write_history,
    write_steps,
)
from calprompt.tensor_files import read_tensor_file, tensor_file
from calprompt.training import TrainingState

KINDS = ("prompts", "momenta", "tuner")  # the tensors of a `TrainingState`

History = list[dict[str, float]]


def write_checkpoint(folder: Path, state: TrainingState, history: History, fingerprint: str) -> None:
    """Write the history and the diagnosed steps, then the checkpoint: they may be ahead of it, never behind."""
    digest = write_history(folder, history)
    tensors = {f"{kind}/{name}": tensor for kind in KINDS for name, tensor in getattr(state, kind).items()}
    metadata = {"epoch": state.epoch, "fingerprint": fingerprint, "history": digest}
    if state.steps:
        metadata["steps"] = write_steps(folder, state.steps)
    write_bytes(folder / CHECKPOINT, tensor_file(tensors, metadata))


def read_checkpoint(folder: Path, fingerprints: tuple[str, ...]) -> tuple[TrainingState, History]:
    """The state to go on from and the history up to it.

    Both are empty if there is no checkpoint of this run, or if its history or its diagnosed steps are lost or damaged:
    training starts over.

    Args:
        folder: Of the run.
        fingerprints: Of the run; after the first, those that earlier versions gave it, whose checkpoints have no
            checksums.

    Raises:
        DamagedFileError: if the checkpoint is not what was written.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return TrainingState(), []
    tensors, metadata = read_tensor_file(path)
    earlier = metadata.get("fingerprint") in fingerprints[1:]
    if not earlier:
        tensors, metadata = read_tensor_file(path, checked=True)
        if metadata["fingerprint"] != fingerprints[0]:
            return TrainingState(), []
    states = {
        kind: {name.removeprefix(f"{kind}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
        for kind in KINDS
    }
    state = TrainingState(metadata["epoch"], states["prompts"], states["momenta"], states["tuner"])
    try:
        history = [row for row in read_history(folder) if row["epoch"] <= state.epoch]
        if "steps" in metadata:
            state.steps = [row for row in read_steps(folder) if row["epoch"] <= state.epoch]
    except ValueError:
        return TrainingState(), []
    if [row["epoch"] for row in history] != list(range(1, state.epoch + 1)):
        return TrainingState(), []
    if not earlier and history_digest(history) != metadata["history"]:
        return TrainingState(), []
    if "steps" in metadata and hashlib.sha256(steps_bytes(state.steps)).hexdigest() != metadata["steps"]:
        return TrainingState(), []
    return state, history

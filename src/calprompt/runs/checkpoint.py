"""The state that a killed run goes on from, on disk."""

from __future__ import annotations

from pathlib import Path

from calprompt.tensor_files import read_tensor_file, tensor_file
from calprompt.train import TrainingState

KINDS = ("prompts", "momenta", "tuner")  # the tensors of a `TrainingState`


def checkpoint_file(state: TrainingState, fingerprint: str) -> bytes:
    """All that `read_checkpoint` needs to give the state back."""
    tensors = {f"{kind}/{name}": tensor for kind in KINDS for name, tensor in getattr(state, kind).items()}
    return tensor_file(tensors, {"epoch": state.epoch, "fingerprint": fingerprint})


def read_checkpoint(path: Path, fingerprint: str) -> TrainingState:
    """The state to go on from: that of the start if there is none, or none of this run."""
    if not path.is_file():
        return TrainingState()
    tensors, about = read_tensor_file(path)
    if about["fingerprint"] != fingerprint:
        return TrainingState()
    held = {
        kind: {name.removeprefix(f"{kind}/"): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}
        for kind in KINDS
    }
    return TrainingState(about["epoch"], **held)

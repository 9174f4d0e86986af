"""A finished run in memory again: its settings, its backbone, and a tuner that holds its prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calprompt.clip import Backbone
from calprompt.errors import CalpromptError
from calprompt.extensions import file_digest
from calprompt.results import PROMPTS, Run, is_complete, load_run
from calprompt.runs.config import RunConfig
from calprompt.runs.prepare import autocasting, create_tuner, few_threads, run_backbone
from calprompt.runs.recipes import build_config
from calprompt.tensor_files import read_tensor_file
from calprompt.tuners import Tuner


@dataclass(frozen=True)
class Restored:
    """A run as it was when its training ended.

    config   its settings; where the backbone is, and the device, may be others now
    tuner    on the classes that were trained on
    digest   sha256 of the file of prompts
    """

    run: Run
    config: RunConfig
    backbone: Backbone
    tuner: Tuner
    digest: str

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Of base and novel, or of all."""
        return {part: tuple(names) for part, names in self.run.record["data"]["class_names"].items()}


def restore(
    folder: str | Path,
    *,
    backbone: str | None = None,
    device: str | None = None,
    imports: Sequence[str | Path] | None = None,
) -> Restored:
    """The run in a folder, ready to predict.

    backbone  where its weights are now, as `load_backbone` takes it; they must be the same weights
    device    instead of the one it was trained on
    imports   where the Python files that it imported are now; they must say the same
    """
    run = load_run(folder)
    if not is_complete(run.folder):
        raise CalpromptError(f"{run.folder} {run.unfinished}")
    moved = {"backbone": backbone, "device": device, "imports": None if imports is None else list(map(str, imports))}
    settings = run.record["config"] | {name: value for name, value in moved.items() if value is not None}
    if backbone is not None and not Path(backbone).expanduser().is_file():
        settings["backbone_config"] = None  # of a file; names and folders have their own
    _check_imports(run, settings["imports"])
    config = run_config(settings)
    loaded = run_backbone(config)
    if loaded.fingerprint != run.record["backbone"]["fingerprint"]:
        raise CalpromptError(
            f"{config.backbone} has other weights than {run.folder} was tuned on, and its prompts mean nothing to "
            "them; say where the same weights are (--backbone SPEC)"
        )
    now = loaded.preprocessing.to_dict()
    then = run.record["backbone"].get("preprocessing", now)
    changed = ", ".join(
        f"{name} was {then.get(name)} and is {now[name]}" for name in now if now[name] != then.get(name)
    )
    if changed:
        raise CalpromptError(
            f"{config.backbone} prepares images in another way than when {run.folder} was tuned ({changed}); say where "
            "the backbone with its own settings is (--backbone SPEC)"
        )
    path = run.folder / PROMPTS
    prompts, about = read_tensor_file(path)
    with autocasting(loaded, config), few_threads(loaded):
        tuner = create_tuner(config, loaded, about["class_names"], about["template"])
    try:
        tuner.load_state_dict(prompts)
    except RuntimeError as error:
        raise CalpromptError(f"{path} does not fit the tuner {config.tuner!r} of this version: {error}") from error
    return Restored(run, config, loaded, tuner, hashlib.sha256(path.read_bytes()).hexdigest())


def _check_imports(run: Run, places: Sequence[str]) -> None:
    """Raise unless the files say what they said when the run was tuned; nothing of them is run yet."""
    if "imports" in run.record and sorted(map(file_digest, places)) != run.record["imports"]:
        raise CalpromptError(
            f"{run.folder} was tuned with another text of what it imports than {', '.join(places) or 'none'}, to which "
            "its prompts may mean something else; put the file back as it was, or say where it is (--import FILE)"
        )


def run_config(told: dict[str, Any]) -> RunConfig:
    """The settings that a run's record tells."""
    flat = {name: value for name, value in told.items() if name != "training"}
    return build_config(**flat | {"imports": tuple(told["imports"])}, **told["training"])

"""A finished run in memory again: its settings, its backbone, and a tuner that holds its prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import calprompt
from calprompt.clip.backbone import Backbone
from calprompt.errors import CalpromptError, DamagedFileError, NewerFormatError, Parameter
from calprompt.files import file_digest
from calprompt.registry import extension_digest, imported_files
from calprompt.runs.config import RUN_SETTINGS, TRAINING_SETTINGS, RunConfig, build_config
from calprompt.runs.folder import PROMPTS, RECOMPUTE, RECORD, Run, is_finished, load_run, read_run_tensors
from calprompt.runs.preparation import create_tuner, run_backbone
from calprompt.runs.resources import Resources
from calprompt.text import plural
from calprompt.tuners import Tuner


@dataclass(frozen=True)
class Restored:
    """A run as it was when its training ended.

    Attributes:
        run: Its folder and record.
        config: Its settings; where the backbone is, and the device, may be others now.
        backbone: As the run used it.
        tuner: On the classes that were trained on.
        digest: sha256 of the file of prompts.
    """

    run: Run
    config: RunConfig
    backbone: Backbone
    tuner: Tuner
    digest: str

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """Class names of base and novel, or of all."""
        return {part: tuple(names) for part, names in self.run.record["data"]["class_names"].items()}


def restore(
    run: str | Path | Run,
    *,
    backbone: str | None = None,
    device: str | None = None,
    imports: Sequence[str | Path] | None = None,
    resources: Resources | None = None,
) -> Restored:
    """The run in a folder, ready to predict.

    Args:
        run: The folder of a finished run, or the run itself if it was read.
        backbone: Where its weights are now, as `load_backbone` takes it; they must be the same weights.
        device: Instead of the one it was trained on.
        imports: The Python files that it needs, which must be the same as then. A folder never names code to run:
            without them, only files that this process has imported already are used.
        resources: What is loaded already.

    Raises:
        CalpromptError: if the run is not finished or damaged, or the backbone is not the one it was tuned on.
    """
    run = run if isinstance(run, Run) else load_run(run)
    if not is_finished(run.folder):
        raise CalpromptError(f"{run.folder} {run.unfinished}")
    settings = moved_settings(run.record["config"], backbone=backbone, device=device)
    settings["imports"] = allowed_imports(run.folder, run.record, imports)
    config = config_of_record(settings, run.folder / RECORD)
    loaded = run_backbone(config, resources or Resources())
    check_backbone(run.folder, run.record["backbone"], config.backbone, loaded)
    path = run.folder / PROMPTS
    prompts, metadata = read_run_tensors(run.folder, PROMPTS, run.record)
    try:
        class_names, template = metadata["class_names"], metadata["template"]
        if config.anchor:
            loaded = loaded.view(logit_scale=metadata["logit_scale"])
    except KeyError as error:
        raise DamagedFileError(f"{path} is damaged, it has no {error}; delete it, and {RECOMPUTE}") from error
    with loaded.limited_threads():
        tuner = create_tuner(config, loaded, class_names, template)
    try:
        tuner.load_state_dict(prompts)
    except RuntimeError as error:
        raise CalpromptError(f"{path} does not fit the tuner {config.tuner!r} of this version: {error}") from error
    return Restored(run, config, loaded, tuner, file_digest(path))


def moved_settings(
    settings: Mapping[str, Any],
    *,
    backbone: str | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """The settings in a record, with where things are now; what is None stays as it was."""
    moved = {"backbone": backbone, "device": device}
    found = {**settings, **{name: value for name, value in moved.items() if value is not None}}
    if backbone is not None and not Path(backbone).expanduser().is_file():
        found["backbone_config"] = None  # of a file; names and folders have their own
    return found


def allowed_imports(folder: Path, record: Mapping[str, Any], named: Sequence[str | Path] | None = None) -> list[str]:
    """The Python files to run for a run or model: those the user named or has imported, never the record's own."""
    digests = sorted(record.get("imports", []))
    places = imported_files(digests) if named is None else [str(path) for path in named]
    if len(places) < len(digests) and not named:
        raise CalpromptError(
            f"{folder} needs {plural(len(digests), 'Python file')} that it was tuned with, and code is run only if you "
            "name it; say where it is with ",
            Parameter("imports", "FILE"),
        )
    if sorted(map(extension_digest, places)) != digests:
        raise CalpromptError(
            f"{folder} was tuned with other contents of what it imports than {', '.join(places) or 'none'}, to which "
            "its prompts may mean something else; put the file back as it was, or say where it is with ",
            Parameter("imports", "FILE"),
        )
    return places


def check_backbone(folder: Path, record: Mapping[str, Any], spec: str, loaded: Backbone) -> None:
    """Raise if a backbone is not the one that a run or model was tuned on, or prepares images in another way."""
    if loaded.fingerprint != record["fingerprint"]:
        raise CalpromptError(
            f"{spec} has other weights than {folder} was tuned on, and its prompts mean nothing to them; say where the "
            "same weights are with ",
            Parameter("backbone", "SPEC"),
        )
    now = loaded.preprocessing.to_dict()
    then = record.get("preprocessing", now)
    changed = ", ".join(
        f"{name} was {then.get(name)} and is {now[name]}" for name in now if now[name] != then.get(name)
    )
    if changed:
        raise CalpromptError(
            f"{spec} prepares images in another way than when {folder} was tuned ({changed}); say where the backbone "
            "with its own settings is with ",
            Parameter("backbone", "SPEC"),
        )


def config_of_record(settings: dict[str, Any], path: Path) -> RunConfig:
    flat = {name: value for name, value in settings.items() if name != "training"}
    strange = [name for name in (*flat, *settings["training"]) if name not in RUN_SETTINGS + TRAINING_SETTINGS]
    if strange:
        raise NewerFormatError(
            f"{path} has the setting {strange[0]!r}, which calprompt {calprompt.__version__} does not know; update "
            "calprompt to use it"
        )
    try:
        return build_config(**flat | {"imports": tuple(settings["imports"])}, **settings["training"])
    except (TypeError, KeyError) as error:
        raise DamagedFileError(f"the config in {path} cannot be used: {error}") from error

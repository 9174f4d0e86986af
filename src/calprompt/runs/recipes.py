"""Recipes: settings of runs as they were published, in YAML files of the package or of one's own.

# first what it is, then the command that runs it
tuner: coop
options: {context: 16, position: middle}
loss: tcpt
epochs: 50

A recipe sets what it names; everything else keeps the default of `RunConfig`, and the command line goes over both.
"""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from calprompt.errors import SettingError
from calprompt.options import check_types
from calprompt.registry import unknown
from calprompt.runs.config import RunConfig
from calprompt.text import parse_problem
from calprompt.training_config import TrainingConfig

TRAINING = [field.name for field in fields(TrainingConfig)]
RUN = [field.name for field in fields(RunConfig) if field.name != "training"]


def available() -> list[str]:
    """Names of the package's recipes."""
    folder = files("calprompt") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def read_recipe(name: str) -> tuple[str, dict[str, Any]]:
    """What a recipe says it is, and its settings; `name` is one of the package's or the path of a YAML file."""
    if name in available():
        text = (files("calprompt") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    elif Path(name).suffix in (".yaml", ".yml"):
        try:
            text = Path(name).expanduser().read_text(encoding="utf-8")
        except OSError as error:
            raise SettingError(f"cannot read recipe {name}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise SettingError(f"recipe {name} is not text in UTF-8: {error.reason} at byte {error.start}") from error
    else:
        raise unknown("recipe", name, available())
    import yaml

    try:
        settings = yaml.load(text, Reader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingError(f"recipe {name} is not YAML: {parse_problem(error)}") from error
    if not isinstance(settings, dict):
        raise SettingError(f"recipe {name} must be settings such as 'tuner: coop', got {type(settings).__name__}")
    for key in settings:
        if key not in RUN + TRAINING:
            raise unknown(f"setting in recipe {name}:", str(key), RUN + TRAINING)
    if isinstance(settings.get("imports"), list):
        settings["imports"] = tuple(settings["imports"])
    for kind in (RunConfig, TrainingConfig):
        check_types(f"recipe {name}: setting", kind.__init__, settings)
    head = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return " ".join(line for line in head if not line.startswith("calprompt ")), settings


def build_config(**settings: Any) -> RunConfig:
    """`RunConfig` from flat settings, those of training among them."""
    for name in settings:
        if name not in RUN + TRAINING:
            raise unknown("setting", name, RUN + TRAINING)
    lacking = [name for name in ("backbone", "data") if name not in settings]
    if lacking:
        raise SettingError(f"the setting {lacking[0]} is missing; every run has a backbone and data")
    training = {name: settings.pop(name) for name in TRAINING if name in settings}
    try:
        return RunConfig(**settings, training=TrainingConfig(**training))
    except TypeError as error:
        raise SettingError(f"these settings do not fit together: {error}") from error


class Reader(yaml.SafeLoader):
    """YAML as most people write it: 2e-3 is a number, which YAML 1.1 takes for text because it has no point."""


Reader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)

"""The command that makes a run again, from its settings: every flag that is not a default."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from calprompt.runs.config import RunConfig
from calprompt.training_config import TrainingConfig

FLAGS = {"imports": "--import", "options": "--set"}
WORDS = {"shots": "all", "views": "new"}  # for None


def train_command(config: Mapping[str, Any]) -> str:
    """The command line of a run's settings, as its record has them.

    Args:
        config: The settings, those of training under "training".

    >>> train_command({"backbone": "pocket", "data": "my photos", "shots": None, "training": {"seed": 2}})
    "calprompt train --backbone pocket --data 'my photos' --shots all --seed 2"
    """
    words: list[str] = []
    values = {**config, **config["training"]}
    for field in (*fields(RunConfig), *fields(TrainingConfig)):
        if field.name == "training" or field.name not in values:
            continue
        value = values[field.name]
        if value == _default(field) or (not value and not isinstance(value, int | float) and field.name not in WORDS):
            continue
        flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
        if isinstance(value, bool):
            words += [flag]
        elif field.name == "options":
            words += [word for name, each in value.items() for word in (flag, f"{name}={_option(each)}")]
        elif field.name == "imports":
            words += [word for each in value for word in (flag, str(each))]
        else:
            words += [flag, WORDS[field.name] if value is None else str(value)]
    return shlex.join(["calprompt", "train", *words])


def _option(value: Any) -> str:
    """A value that `--set` reads as it is: text without quotes, unless it would be read as something else."""
    if not isinstance(value, str):
        return repr(value)
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return value
    return repr(value)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default

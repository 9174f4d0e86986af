"""Tune prompts on the first half of the classes, evaluate on both halves, and keep everything in a folder. The same
command finds a finished run and resumes an interrupted one.

examples:
  calprompt train --backbone ViT-B-16-quickgelu/openai --data photos/
  calprompt train --backbone weights.pt --data photos/ --set words="a photo of a" --loss "ce + margin + 5*moments"
"""

from __future__ import annotations

import argparse
import ast
from typing import TYPE_CHECKING, Any

from calprompt.cli.shared import add_flags, add_shared, say, settings_of
from calprompt.errors import SettingError
from calprompt.files import check_writable
from calprompt.progress import show_progress
from calprompt.runs.config import RunConfig
from calprompt.training_config import TrainingConfig, never_used

if TYPE_CHECKING:
    from calprompt.runs.folder import Run
    from calprompt.runs.resources import Resources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", metavar="NAME", help="published settings, see 'calprompt list', or a YAML file")
    parser.add_argument("--out", default="runs", metavar="FOLDER", help="folder for the run's folder (default: runs)")
    add_shared(parser, "no_cache", "quiet")
    add_flags(parser, RunConfig, leave_out=("training",), required=("backbone", "data"))
    add_flags(parser, TrainingConfig)


def run(args: argparse.Namespace) -> None:
    """Train and evaluate, then print the table and where everything is."""
    from calprompt.cli.show import print_run
    from calprompt.runs.planning import find_finished
    from calprompt.runs.resources import Resources

    check_writable(args.out, parameter="out")
    settings = run_settings(args)
    resources = Resources()
    result = find_finished(settings, args.out, resources=resources) or _run(settings, args, resources)
    if result.reused:
        say("already finished, nothing was computed:")
    for name, reason in result.record["data"].get("skipped", {}).items():
        say(f"skipped {name}: {reason}")
    print_run(result)


def run_settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that the arguments mean: the recipe's, and over them those that were given."""
    from calprompt.runs.config import read_recipe

    given = settings_of(args, RunConfig, TrainingConfig)
    options = dict(option_value(text) for text in given.pop("options", []))
    recipe = read_recipe(args.recipe)[1] if args.recipe else {}
    if "tuner" in given and given["tuner"] != recipe.get("tuner", given["tuner"]):
        raise SettingError(f"recipe {args.recipe} is for tuner {recipe['tuner']}, not for {given['tuner']}")
    return {**recipe, **given, "options": {**recipe.get("options", {}), **options}}


def _run(settings: dict[str, Any], args: argparse.Namespace, resources: Resources) -> Run:
    from calprompt.features.store import FeatureStore
    from calprompt.runs.config import build_config
    from calprompt.runs.execute import run

    config = build_config(**settings)
    if "lr" in vars(args) and config.training.epochs <= config.training.warmup_epochs:
        raise never_used(config.training.epochs, config.training.warmup_epochs)
    resources.store = None if args.no_cache else FeatureStore()
    with show_progress(args.quiet) as progress:
        return run(config, args.out, resources=resources, progress=progress)


def option_value(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value read as Python writes it, or else as it stands."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise SettingError(f"--set takes NAME=VALUE, such as context=4; got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return name, value

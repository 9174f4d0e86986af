"""`calprompt train`: tune prompts, evaluate them, and keep it all in a folder."""

from __future__ import annotations

import argparse
import ast
from functools import partial
from typing import TYPE_CHECKING, Any

from calprompt.commands.console import output, progress_bars
from calprompt.errors import CalpromptError

if TYPE_CHECKING:
    from calprompt.runs import RunConfig

EXAMPLE = """\
examples:
  calprompt train --backbone ViT-B-16-quickgelu/openai --data photos/
  calprompt train --backbone weights.pt --data photos/ --set words="a photo of a" --loss "ce + margin + 5*moments"
"""
NOT_SETTINGS = ("command", "recipe", "out", "quiet", "no_cache")  # arguments that are not settings of the run


def add_command(commands: Any) -> None:
    """Add `train` to the subparsers of the command line; its defaults are those of `RunConfig`."""
    one = commands.add_parser(
        "train",
        help="tune prompts on base classes, evaluate on base and novel ones",
        description="Tune prompts on the first half of the classes, evaluate on both halves, keep it all in a folder.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(command=train)
    add = one.add_argument
    add("--backbone", required=True, metavar="SPEC", help="model/tag of open_clip, hf-hub:owner/name, file or folder")
    add(
        "--data",
        required=True,
        metavar="DATA",
        help="folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'",
    )
    add("--recipe", metavar="NAME", help="published settings, see 'calprompt list', or a YAML file; options go over it")
    add("--out", default="runs", metavar="FOLDER", help="where the run's folder goes (default: %(default)s)")
    add("--no-cache", action="store_true", help="neither use nor keep image features for other runs")
    add("--quiet", action="store_true", help="no progress bars")
    setting = partial(add, default=argparse.SUPPRESS)  # what is not said is left to the recipe, then to RunConfig
    setting("--backbone-config", metavar="NAME", help="open_clip model name or JSON config, for a file that has none")
    setting("--root", metavar="DIR", help="where the datasets, or the images of a list, are")
    setting("--classes", metavar="FILE", help="order and names of the classes, and their template")
    setting("--base", metavar="FILE", help="names of the base classes, a line each (default: the first half)")
    setting("--exif", action="store_true", help="turn images as their EXIF data say")
    setting("--skip-bad", action="store_true", help="go on without images that cannot be read")
    setting("--tuner", help="see 'calprompt list' (default: coop)")
    setting("--set", action="append", metavar="NAME=VALUE", dest="options", help="tuner option, such as context=4")
    setting("--loss", help="a name or a sum such as 'ce + 5*moments' (default: tcpt)")
    setting("--protocol", help="base-to-novel, or few-shot on all classes (default: base-to-novel)")
    setting("--shots", type=_shots, metavar="K", help="images a class, or 'all' (default: 16)")
    setting("--seed", type=int, help="of shots, prompts and batches (default: 1)")
    setting("--epochs", type=int, help="(default: 50)")
    setting("--batch-size", type=int, metavar="N", help="(default: 32)")
    setting("--lr", type=float, help="learning rate (default: 0.002)")
    setting("--diagnose-every", type=int, metavar="STEPS", help="log gradient norms of all terms (default: never)")
    setting("--views", type=_views, metavar="N", help="random crops of an image, or 'new' in every epoch (default: 8)")
    setting("--crop", type=float, metavar="SHARE", help="smallest share of an image in a crop (default: 0.08)")
    setting("--template", help="of the untuned model (default: the dataset's for the tuner, or 'a photo of a {}.')")
    setting("--chunk", type=int, metavar="N", help="classes encoded at a time, to save memory (default: all)")
    setting("--device", help="cpu, cuda, cuda:1, … (default: cpu)")
    setting("--dtype", help="of the weights: float32, float16, bfloat16, float64 (default: float32)")
    setting("--autocast", metavar="DTYPE", help="run the towers in bfloat16 or float16")
    setting("--import", action="append", metavar="FILE", dest="imports", help="Python file of your own to run first")


def train(chosen: argparse.Namespace) -> None:
    """Train and evaluate, then print the table and where everything is."""
    config = run_config(chosen)
    from calprompt.commands.tables import print_run
    from calprompt.data.store import FeatureStore
    from calprompt.runs import run

    store = None if chosen.no_cache else FeatureStore()
    with progress_bars(chosen.quiet) as progress:
        result = run(config, chosen.out, store=store, progress=progress)
    if result.reused:
        output().print("already finished, nothing was computed:")
    for name, reason in result.record["data"].get("skipped", {}).items():
        output().print(f"skipped {name}: {reason}", markup=False, soft_wrap=True)
    print_run(result)


def run_config(chosen: argparse.Namespace) -> RunConfig:
    """The settings that the arguments mean: the recipe's, and over them what was said."""
    said = {name: value for name, value in vars(chosen).items() if name not in NOT_SETTINGS}
    options = dict(_option(text) for text in said.pop("options", []))
    if "imports" in said:
        said["imports"] = tuple(said["imports"])
    from calprompt.runs.recipes import build_config, read_recipe

    recipe = read_recipe(chosen.recipe)[1] if chosen.recipe else {}
    if "tuner" in said and said["tuner"] != recipe.get("tuner", said["tuner"]):
        raise CalpromptError(f"recipe {chosen.recipe} is for tuner {recipe['tuner']}, not for {said['tuner']}")
    return build_config(**{**recipe, **said, "options": {**recipe.get("options", {}), **options}})


def _shots(text: str) -> int | None:
    return _number_or("all", text, "images a class")


def _views(text: str) -> int | None:
    return _number_or("new", text, "crops of an image")


def _number_or(word: str, text: str, of: str) -> int | None:
    if text != word and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of {of}, or {word!r}; got {text!r}")
    return None if text == word else int(text)


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value read as Python writes it, or else as it stands."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise CalpromptError(f"--set takes NAME=VALUE, such as context=4; got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value

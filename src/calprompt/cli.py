"""The command line: `calprompt train`, `evaluate`, `show` and `list`, each a few lines over the library.

Libraries that take seconds to import are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

import calprompt
from calprompt.data.cache_commands import add_commands as add_cache
from calprompt.data.commands import add_commands as add_data
from calprompt.errors import CalpromptError

if TYPE_CHECKING:
    from calprompt.data import Progress as Report
    from calprompt.results import Run
    from calprompt.runs import RunConfig

TRAIN_EXAMPLE = """\
examples:
  calprompt train --backbone ViT-B-16-quickgelu/openai --data photos/
  calprompt train --backbone weights.pt --data photos/ --set words="a photo of a" --loss "ce + margin + 5*moments"
"""
EVALUATE_EXAMPLE = """\
examples:
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab
  calprompt evaluate runs/* --calibrators temperature "temperature -> dac" --out evaluations.csv
  calprompt evaluate runs/coop-photos-16shot-seed1-0123456789ab --target-error 0.05
"""
COLUMNS = {"accuracy": "accuracy", "ece": "ECE", "ace": "ACE", "mce": "MCE", "confidence_gap": "confidence\ngap"}
PARTS = ("base", "novel", "all")
NOT_SETTINGS = ("command", "recipe", "out", "quiet", "no_cache")  # arguments of `train` that are not of the run
CAPTION = (
    "percent; 10 bins; MCE is the textbook one, the largest gap of a bin; "
    "confidence gap is mean confidence minus accuracy"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 for a mistake of the user's, 130 if interrupted."""
    chosen = parser().parse_args(arguments)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        chosen.command(chosen)
    except (CalpromptError, OSError) as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}")
        return 2
    except KeyboardInterrupt:
        hint = "" if chosen.command is not train else "; the same command goes on after the last finished epoch"
        errors.print(f"interrupted{hint}")
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands; the defaults of `train` are those of `RunConfig`."""
    top = argparse.ArgumentParser(
        prog="calprompt", description="Prompt tuning of CLIP with confidences that can be trusted."
    )
    top.add_argument("--version", action="version", version=f"calprompt {calprompt.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    one = commands.add_parser(
        "train",
        help="tune prompts on base classes, evaluate on base and novel ones",
        description="Tune prompts on the first half of the classes, evaluate on both halves, keep it all in a folder.",
        epilog=TRAIN_EXAMPLE,
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
    setting("--seed", type=int, help="of shots, views, prompts and batches (default: 1)")
    setting("--epochs", type=int, help="(default: 50)")
    setting("--batch-size", type=int, metavar="N", help="(default: 32)")
    setting("--lr", type=float, help="learning rate (default: 0.002)")
    setting("--diagnose-every", type=int, metavar="STEPS", help="log gradient norms of all terms (default: never)")
    setting("--views", type=int, metavar="N", help="random crops of a training image (default: 8)")
    setting("--template", help="of the untuned model (default: the dataset's, or 'a photo of a {}.')")
    setting("--chunk", type=int, metavar="N", help="classes encoded at a time, to save memory (default: all)")
    setting("--device", help="cpu, cuda, cuda:1, … (default: cpu)")
    setting("--dtype", help="of the weights: float32, float16, bfloat16, float64 (default: float32)")
    setting("--autocast", metavar="DTYPE", help="run the towers in bfloat16 or float16")
    setting("--import", action="append", metavar="FILE", dest="imports", help="Python file of your own to run first")

    one = commands.add_parser(
        "evaluate",
        help="all metrics of runs under calibrators, with intervals, from their stored logits",
        description="Measure runs again from their stored logits, without the model: every metric with a bootstrap\n"
        "interval, as it is and under calibrators fitted on the validation images.",
        epilog=EVALUATE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(command=evaluate)
    add = one.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a run")
    add("--out", metavar="FILE", help=".json or .csv of all runs (default: evaluation.json in each run's folder)")
    setting = partial(add, default=argparse.SUPPRESS)  # what is not said is left to EvaluationSettings
    setting(
        "--calibrators",
        nargs="+",
        metavar="NAME",
        help="see 'calprompt list', or 'a -> b'; none comes first (default: temperature dac sals)",
    )
    setting("--bins", type=int, metavar="N", help="of the calibration errors (default: 10)")
    setting("--convention", metavar="NAME", help="how to bin: default, tcpt or dac (default: default)")
    setting("--bootstrap", type=int, metavar="N", help="resamples of the images; 0: no intervals (default: 1000)")
    setting("--seed", type=int, help="of the resamples (default: 0)")
    setting("--zero-shot", action="store_true", help="the untuned model as well")
    setting("--target-error", type=float, metavar="X", help="choose a threshold with at most this error, such as 0.05")
    setting("--confidence-level", type=float, metavar="X", help="of that choice (default: 0.95)")
    setting("--import", action="append", metavar="FILE", dest="imports", help="Python file of your own to run first")

    one = commands.add_parser("show", help="print the table of a run again", description="Print the table of a run.")
    one.set_defaults(command=show)
    one.add_argument("run", metavar="RUN", help="folder of a run, such as runs/coop-photos-16shot-seed1-0123456789ab")

    one = commands.add_parser("list", help="tuners, losses, calibrators and metrics there are")
    one.set_defaults(command=list_names)

    add_data(commands)
    add_cache(commands)
    return top


def train(chosen: argparse.Namespace) -> None:
    """Train and evaluate, then print the table and where everything is."""
    config = run_config(chosen)
    from calprompt.data.store import FeatureStore
    from calprompt.runs import run

    store = None if chosen.no_cache else FeatureStore()
    with _bars(chosen.quiet) as progress:
        result = run(config, chosen.out, store=store, progress=progress)
    if result.reused:
        output().print("already finished, nothing was computed:")
    for name, reason in result.record["data"].get("skipped", {}).items():
        output().print(f"skipped {name}: {reason}", markup=False, soft_wrap=True)
    print_run(result)


def evaluate(chosen: argparse.Namespace) -> None:
    """Evaluate runs from their logits, print a table of each and write the numbers down."""
    from calprompt.evaluation import EvaluationSettings, check_output, evaluate_run, write_evaluations
    from calprompt.evaluation.tables import print_evaluation

    said = {name: value for name, value in vars(chosen).items() if name not in ("command", "runs", "out")}
    for name in ("calibrators", "imports"):
        if name in said:
            said[name] = tuple(said[name])
    settings = EvaluationSettings(**said)
    if chosen.out is not None:
        check_output(chosen.out)
    with _bars(quiet=False) as progress:
        evaluations = [
            evaluate_run(folder, settings, progress=progress) for folder in dict.fromkeys(map(Path, chosen.runs))
        ]
    console = output()
    for evaluation in evaluations:
        print_evaluation(evaluation, console)
    for path in write_evaluations(evaluations, chosen.out):
        console.print(str(path), markup=False, soft_wrap=True)


def show(chosen: argparse.Namespace) -> None:
    """Print what a run folder holds."""
    from calprompt.results import load_run

    print_run(load_run(chosen.run))


def list_names(chosen: argparse.Namespace) -> None:
    """Print every registered name with the first line of what it says about itself."""
    from calprompt import calibrators, losses, metrics, tuners
    from calprompt.runs import recipes

    kinds: dict[str, Any] = {
        "tuners": tuners.tuners,
        "losses": losses.losses,
        "calibrators": calibrators.calibrators,
        "metrics": metrics.metrics,
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for kind, registry in kinds.items():
        table.add_row(f"[bold]{kind}[/bold]")
        for name in registry.available():
            about = (registry.get(name).__doc__ or "").strip().splitlines()
            table.add_row(f"  {name}", escape(about[0]) if about else "")
        if kind == "losses":
            for name, meaning in losses.NAMED.items():
                table.add_row(f"  {name}", f"= {meaning}")
    table.add_row("[bold]recipes[/bold]")
    for name in recipes.available():
        table.add_row(f"  {name}", escape(recipes.read_recipe(name)[0]))
    output().print(table)


def run_config(chosen: argparse.Namespace) -> RunConfig:
    """The settings that the arguments of `train` mean: the recipe's, and over them what was said."""
    said = {name: value for name, value in vars(chosen).items() if name not in NOT_SETTINGS}
    options = dict(_option(text) for text in said.pop("options", []))
    if "imports" in said:
        said["imports"] = tuple(said["imports"])
    from calprompt.runs.recipes import build_config, read_recipe

    recipe = read_recipe(chosen.recipe)[1] if chosen.recipe else {}
    if "tuner" in said and said["tuner"] != recipe.get("tuner", said["tuner"]):
        raise CalpromptError(f"recipe {chosen.recipe} is for tuner {recipe['tuner']}, not for {said['tuner']}")
    return build_config(**{**recipe, **said, "options": {**recipe.get("options", {}), **options}})


def print_run(run: Run) -> None:
    """The table of a finished run, or what became of it, and its folder."""
    console = output()
    if run.status == "finished":
        console.print(results_table(run, run.title))
        reasons = [(name, run.metrics[name].get("not_applicable")) for name in PARTS if name in run.metrics]
        for name, reason in reasons:
            if reason:
                console.print(f"{name}: {reason}", markup=False, soft_wrap=True)
    else:
        done = f"after {len(run.history())} of {run.record['config']['training']['epochs']} epochs"
        reason = f": {run.record['reason']}" if "reason" in run.record else ""
        console.print(f"{run.status} {done}{reason}", markup=False, soft_wrap=True)
    console.print(str(run.folder), markup=False, soft_wrap=True)


def results_table(run: Run, title: str) -> Table:
    """Base and novel, or all classes, tuned and zero-shot, in percent."""
    table = Table(title=escape(title), caption=CAPTION, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    for column in ("images", "classes", *COLUMNS.values()):
        table.add_column(column, justify="right", overflow="fold", vertical="bottom")
    for part in (part for part in PARTS if part in run.metrics):
        for name, values in ((part, run.metrics[part]), ("  zero-shot", run.metrics["zero_shot"][part])):
            counts = [str(values.get(count, "n/a")) for count in ("images", "classes")]
            table.add_row(name, *counts, *(_percent(values, metric) for metric in COLUMNS))
    return table


def output() -> Console:
    """Standard output, wide enough for a table when it goes to a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def _percent(values: dict[str, Any], metric: str) -> str:
    if metric not in values:
        return "n/a"
    return f"{100 * values[metric]:+.2f}" if metric == "confidence_gap" else f"{100 * values[metric]:.2f}"


def _shots(text: str) -> int | None:
    return None if text == "all" else int(text)


def _option(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value read as Python writes it, or else as it stands."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise CalpromptError(f"--set takes NAME=VALUE, such as context=4; got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


@contextmanager
def _bars(quiet: bool) -> Iterator[Report]:
    """Progress bars on standard error; none if it is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, TextColumn("{task.fields[note]}"), console=console, disable=quiet or not console.is_terminal
    ) as bars:

        def report(what: str, done: int, total: int, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note="")
            bars.update(tasks[what], completed=done, total=total, note=note)

        yield report

"""`calprompt transfer`: trained runs on other data, of their classes or of others."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from calprompt.commands.console import output, progress_bars
from calprompt.commands.several import each_run
from calprompt.errors import CalpromptError

EXAMPLE = """\
examples:
  calprompt transfer runs/coop-imagenet-16shot-seed1-0123456789ab --data imagenetv2 imagenet_sketch --root datasets
  calprompt transfer runs/* --data dtd eurosat --root datasets
  calprompt transfer runs/coop-photos-16shot-seed1-0123456789ab --data drawings/
"""
NOT_OF_TARGET = ("command", "runs", "data", "backbone", "device", "imports", "no_cache", "quiet")


def add_command(commands: Any) -> None:
    """Add `transfer` to the subparsers of the command line; its defaults are those of `Target`."""
    one = commands.add_parser(
        "transfer",
        help="evaluate runs on other data: the same classes in other images, or other classes",
        description="Evaluate the prompts of finished runs on the test images of other data, and keep it in their\n"
        "folders. Classes that the run has are base and novel as they were there; others are evaluated all at once.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(command=transfer)
    add = one.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder of a run")
    add(
        "--data",
        nargs="+",
        required=True,
        metavar="DATA",
        help="folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'; several are evaluated in turn",
    )
    add("--backbone", metavar="SPEC", help="where the same weights are now (default: where they were)")
    add("--device", help="cpu, cuda, cuda:1, … (default: the run's)")
    add(
        "--import",
        action="append",
        metavar="FILE",
        dest="imports",
        help="where a Python file that the runs imported is now (default: where it was)",
    )
    add("--no-cache", action="store_true", help="neither use nor keep image features for other runs")
    add("--quiet", action="store_true", help="no progress bars")
    setting = partial(add, default=argparse.SUPPRESS)  # what is not said is left to Target
    setting("--root", metavar="DIR", help="where the datasets, or the images of a list, are")
    setting("--classes", metavar="FILE", help="order and names of the classes")
    setting("--name", help="what to call the results (default: the dataset's name)")
    setting("--template", help="of the untuned model (default: the run's for its classes, else the dataset's)")
    setting("--all-classes", action="store_true", help="all classes at once, even if they are the run's")
    setting("--exif", action="store_true", help="turn images as their EXIF data say")
    setting("--skip-bad", action="store_true", help="go on without images that cannot be read")


def transfer(chosen: argparse.Namespace) -> None:
    """Evaluate every run on all data, then print the tables of the runs."""
    said = {name: value for name, value in vars(chosen).items() if name not in NOT_OF_TARGET}
    for option in ("classes", "name"):
        if option in said and len(chosen.data) > 1:
            raise CalpromptError(f"--{option} is for one dataset, and --data has {len(chosen.data)}")
    from calprompt.commands.tables import print_run
    from calprompt.data.store import FeatureStore
    from calprompt.results import load_run
    from calprompt.runs import Target, evaluate_on, restore

    targets = [Target(data, **said) for data in chosen.data]
    names = [Path(data).resolve().name if Path(data).is_dir() else Path(data).stem for data in chosen.data]
    same = sorted({name for name in names if names.count(name) > 1})
    if same:
        raise CalpromptError(
            f"--data has {names.count(same[0])} of the name {same[0]}, of which the last would replace the others; "
            "evaluate them one at a time, with --name"
        )
    store = None if chosen.no_cache else FeatureStore()

    def evaluate(folder: Path) -> None:
        with progress_bars(chosen.quiet) as progress:
            restored = restore(folder, backbone=chosen.backbone, device=chosen.device, imports=chosen.imports)
            done = [evaluate_on(restored, target, store=store, progress=progress) for target in targets]
        for each in done:
            if each.reused:
                output().print(f"{each.name}: already done, nothing was computed", markup=False, soft_wrap=True)
            for name, reason in each.record["data"]["skipped"].items():
                output().print(f"skipped {name}: {reason}", markup=False, soft_wrap=True)
        print_run(load_run(folder))

    _, left_out = each_run(chosen.runs, evaluate)
    if left_out is not None:
        raise left_out

"""Evaluate the prompts of finished runs on the test images of other data, and keep the results in the runs' folders.
Classes of the run stay base and novel; other classes are evaluated all at once.

examples:
  calprompt transfer runs/coop-imagenet-16shot-seed1-0123456789ab --data imagenetv2 imagenet_sketch --root datasets
  calprompt transfer runs/* --data dtd eurosat --root datasets
  calprompt transfer runs/coop-photos-16shot-seed1-0123456789ab --data drawings/
"""

from __future__ import annotations

import argparse
from pathlib import Path

from calprompt.cli.shared import add_flags, add_shared, each_run, say, settings_of
from calprompt.errors import SettingError
from calprompt.progress import show_progress
from calprompt.runs.config import Target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run")
    data = "folder, CSV, JSON, .safetensors, or a name of 'calprompt data list'; several are evaluated in turn"
    parser.add_argument("--data", nargs="+", required=True, metavar="DATA", help=data)
    add_shared(parser, "backbone", "imports", "no_cache", "quiet", device="the run's")
    add_flags(parser, Target, leave_out=("data",))


def run(args: argparse.Namespace) -> None:
    """Evaluate every run on all data, then print the tables of the runs."""
    settings = {name: value for name, value in settings_of(args, Target).items() if name != "data"}
    for option in ("classes", "name"):
        if option in settings and len(args.data) > 1:
            raise SettingError(f"--{option} is for one dataset, and --data has {len(args.data)}")
    targets = [Target(data, **settings) for data in args.data]
    names = [Path(data).resolve().name if Path(data).is_dir() else Path(data).stem for data in args.data]
    same = sorted({name for name in names if names.count(name) > 1})
    if same:
        raise SettingError(
            f"--data has {names.count(same[0])} of the name {same[0]}, of which the last would replace the others; "
            "evaluate them one at a time, with --name"
        )
    from calprompt.cli.show import print_run
    from calprompt.features.store import FeatureStore
    from calprompt.runs.folder import load_run
    from calprompt.runs.resources import Resources
    from calprompt.runs.restoring import restore
    from calprompt.runs.transfer import evaluate_on

    resources = Resources(store=None if args.no_cache else FeatureStore())

    def evaluate(folder: Path) -> None:
        with show_progress(args.quiet) as progress:
            restored = restore(
                folder, backbone=args.backbone, device=args.device, imports=args.imports, resources=resources
            )
            done = [evaluate_on(restored, target, resources=resources, progress=progress) for target in targets]
        for each in done:
            say(*([f"{each.name}: already done, nothing was computed"] if each.reused else []))
            say(*(f"skipped {name}: {reason}" for name, reason in each.record["data"]["skipped"].items()))
        print_run(load_run(folder))

    _, left_out = each_run(args.runs, evaluate)
    if left_out is not None:
        raise left_out

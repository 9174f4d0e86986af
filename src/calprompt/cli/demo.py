"""Tune CoOp with and without TCPT on the first half of the classes, evaluate both halves, and print accuracy and
calibration errors beside the untuned model's. Finished runs are not repeated.

examples:
  calprompt demo
  calprompt demo --data pocket_objects pocket_flags --seeds 5
  calprompt demo --backbone weights/ViT-B-16.pt --data photos/
"""

from __future__ import annotations

import argparse

from calprompt.cli.shared import add_flags, add_shared, checked_tolerance, output, say, settings_of
from calprompt.demo import DemoSettings
from calprompt.files import check_writable
from calprompt.progress import show_progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--out", default="demo", metavar="DIR", help="folder for runs, tables and figures (default: %(default)s)")
    add("--check", metavar="FILE", help="table.json with the expected numbers; fail if any differs")
    add("--tolerance", type=float, metavar="X", help="largest difference for --check, in points (default: 0.05)")
    add_shared(parser, "quiet")
    add_flags(parser, DemoSettings, leave_out=("recipe", "bins", "resamples"))


def run(args: argparse.Namespace) -> None:
    """Run, print the table and the files written and, with --check, compare the numbers with the expected ones."""
    from calprompt.cli.compare import print_results
    from calprompt.demo import check_results, check_settings, run_demo
    from calprompt.features.store import FeatureStore
    from calprompt.results.compare import Results

    settings = DemoSettings(**settings_of(args, DemoSettings))
    tolerance = checked_tolerance(args, 0.05)
    check_writable(args.out, parameter="out")
    expected = Results.read(args.check) if args.check else None
    if expected:
        check_settings(settings.record(), expected, args.check)
    with show_progress(args.quiet) as progress:
        done = run_demo(settings, args.out, store=FeatureStore(), progress=progress)
    console = output()
    print_results(done.results, console)
    say("", *done.story, "", *done.files, f"open {done.files[-1]} in a browser to see all of it")
    if expected:
        count = check_results(done.results, expected, args.check, tolerance)
        say(f"{count} numbers equal those of {args.check}, within {tolerance:g} percentage points")

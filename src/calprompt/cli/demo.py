"""`calprompt demo`: what TCPT does to confidences, on the model and the pictures of the package."""

from __future__ import annotations

import argparse

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import add_flags, checked_tolerance, describe, settings_of
from calprompt.demo.settings import DemoSettings
from calprompt.files import check_writable

EXAMPLES = """\
  calprompt demo
  calprompt demo --data pocket_objects pocket_flags --seeds 5
  calprompt demo --backbone weights/ViT-B-16.pt --data photos/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo` to its parser; its defaults are those of `DemoSettings`."""
    describe(
        parser,
        "Tune CoOp with and without TCPT on the first half of the classes, evaluate both halves, and\n"
        "print accuracy and calibration errors beside the untuned model's. What is done is not done again.",
        EXAMPLES,
    )
    parser.set_defaults(command=demo)
    add = parser.add_argument
    add("--out", default="demo", metavar="DIR", help="where runs, tables and figures go (default: %(default)s)")
    add("--check", metavar="FILE", help="a table.json that the numbers have to equal")
    add("--tolerance", type=float, metavar="X", help="of --check, in percentage points (default: 0.05)")
    add("--quiet", action="store_true", help="show no progress")
    add_flags(parser, DemoSettings, leave_out=("recipe", "bins", "resamples"))


def demo(args: argparse.Namespace) -> None:
    """Run, print the table, say what was written and, if asked to, whether the numbers are the expected ones."""
    from calprompt.cli.compare import print_results
    from calprompt.demo.comparison import run_demo
    from calprompt.features.store import FeatureStore
    from calprompt.results.comparison import Results, check_results, check_settings

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
    console.print()
    for sentence in done.story:
        console.print(sentence, markup=False, soft_wrap=True)
    console.print()
    for path in done.files:
        console.print(str(path), markup=False, soft_wrap=True)
    console.print(f"open {done.files[-1]} in a browser to see all of it", markup=False, soft_wrap=True)
    if expected:
        count = check_results(done.results, expected, args.check, tolerance)
        line = f"{count} numbers equal those of {args.check}, within {tolerance:g} percentage points"
        console.print(line, markup=False, soft_wrap=True)

"""`calprompt demo`: what TCPT does to confidences, on the model and the pictures of the package."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from calprompt.commands.console import output, progress_bars

EXAMPLE = """\
examples:
  calprompt demo
  calprompt demo --data pocket_objects pocket_flags --seeds 5
  calprompt demo --backbone weights/ViT-B-16.pt --data photos/
"""
NOT_SETTINGS = ("command", "out", "check", "tolerance", "quiet")


def add_command(commands: Any) -> None:
    """Add `demo` to the subparsers of the command line; its defaults are those of `DemoSettings`."""
    one = commands.add_parser(
        "demo",
        help="zero-shot, CoOp and CoOp + TCPT compared on the package's own model and pictures",
        description="Tune CoOp with and without TCPT on the first half of the classes, evaluate both halves, and\n"
        "print accuracy and calibration errors beside the untuned model's. What is done is not done again.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(command=demo)
    add = one.add_argument
    add("--out", default="demo", metavar="DIR", help="where runs, tables and figures go (default: %(default)s)")
    add("--check", metavar="FILE", help="a table.json that the numbers have to equal")
    add("--tolerance", type=float, default=0.05, metavar="X", help="of --check, in percentage points (default: 0.05)")
    add("--quiet", action="store_true", help="no progress bars")
    setting = partial(add, default=argparse.SUPPRESS)  # what is not said is left to DemoSettings
    setting("--data", nargs="+", metavar="NAME", help="datasets (default: pocket_signs pocket_photos)")
    setting("--seeds", type=int, metavar="N", help="runs of each method, with seeds 1 to N (default: 3)")
    setting("--epochs", type=int, metavar="N", help="(default: 50)")
    setting("--backbone", metavar="SPEC", help="as 'calprompt train' takes it (default: pocket)")


def demo(chosen: argparse.Namespace) -> None:
    """Run, print the table, say what was written and, if asked to, whether the numbers are the expected ones."""
    from calprompt.data.store import FeatureStore
    from calprompt.report.demo import DemoSettings, run_demo
    from calprompt.report.results import Results, check_results, check_settings
    from calprompt.report.tables import print_results

    said = {name: value for name, value in vars(chosen).items() if name not in NOT_SETTINGS}
    if "data" in said:
        said["data"] = tuple(said["data"])
    settings = DemoSettings(**said)
    expected = Results.read(chosen.check) if chosen.check else None
    if expected:
        check_settings(settings.record(), expected, chosen.check)
    with progress_bars(chosen.quiet) as progress:
        done = run_demo(settings, chosen.out, store=FeatureStore(), progress=progress)
    console = output()
    print_results(done.results, console)
    console.print()
    for path in done.files:
        console.print(str(path), markup=False, soft_wrap=True)
    if expected:
        count = check_results(done.results, expected, chosen.check, chosen.tolerance)
        told = f"{count} numbers equal those of {chosen.check}, within {chosen.tolerance:g} percentage points"
        console.print(told, markup=False, soft_wrap=True)

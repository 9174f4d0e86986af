"""`calprompt report`: one HTML page of results, and the check that it is true."""

from __future__ import annotations

import argparse

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import add_flags, checked_tolerance, describe, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.files import check_output
from calprompt.report.page.document import ReportSettings
from calprompt.text import format_size

EXAMPLES = """\
  calprompt report runs/coop-photos-16shot-seed1-0123456789ab
  calprompt report runs/main --out report.html
  calprompt report paper/pocket-main --runs runs/main --calibrators temperature dac
  calprompt report results.csv.xz --no-figures
  calprompt report --check report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `report` to its parser; its defaults are those of `ReportSettings`."""
    describe(
        parser,
        "Write one HTML file with everything about some runs: the headline, tables that sort, figures,\n"
        "mistakes, thresholds, and the commands that make it again. With --check, compute every number\n"
        "of such a file again from the stored logits and name what differs.",
        EXAMPLES,
    )
    parser.set_defaults(command=report)
    add = parser.add_argument
    add("places", nargs="*", metavar="PLACE", help="run folders, folders of runs, sweeps, tables of results")
    add("--out", default="report.html", metavar="FILE", help="the page (default: %(default)s)")
    add("--runs", metavar="DIR", help="folder of the runs of a sweep; with --check, where the runs are now")
    add("--calibrators", nargs="+", metavar="NAME", help="what to measure with (default: those of the sweeps)")
    add("--check", metavar="FILE", help="compute all numbers of a report again and compare")
    add("--tolerance", type=float, metavar="X", help="of --check, in percentage points (default: 0)")
    add("--quiet", action="store_true", help="show no progress")
    add_flags(parser, ReportSettings)


def report(args: argparse.Namespace) -> None:
    """Write a page and say where it is; or check one."""
    tolerance = checked_tolerance(args, 0.0)
    if args.check is not None:
        if args.places:
            raise SettingError(
                "takes one report and no other places; say where its runs are with ",
                Parameter("runs", "DIR"),
                parameter="check",
            )
        _check(args, tolerance)
        return
    settings = ReportSettings(**settings_of(args, ReportSettings))
    from calprompt.report.page.build import build_report
    from calprompt.report.page.render import write_report
    from calprompt.results.sources import read_source
    from calprompt.sweep.names import check_calibrator

    for spec in args.calibrators or ():
        check_calibrator(spec)
    out = check_output(args.out, (".html",), parameter="out")
    with show_progress(args.quiet) as progress:
        source = read_source(*args.places, out=args.runs, calibrators=args.calibrators, progress=progress)
        done = build_report(source, settings, near=out.parent, progress=progress)
        write_report(done, out)
    console = output()
    for line in (*done.headline, *done.remarks, *done.notes):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{out} ({format_size(out.stat().st_size)})", markup=False, soft_wrap=True)


def _check(args: argparse.Namespace, tolerance: float) -> None:
    from calprompt.report.page.check import check_report, require_true

    with show_progress(args.quiet) as progress:
        checked = check_report(args.check, runs=args.runs, tolerance=tolerance, progress=progress)
    require_true(checked)
    origin = f"from the stored logits of {checked.from_logits} runs"
    if checked.from_tables:
        origin += f"; those of {checked.from_tables} runs, whose folders are not here, from the table of results"
    line = f"{checked.path} is true: {checked.numbers:,} numbers were computed again, {origin}"
    if checked.drawn_by:
        line += f"; of figures, which {checked.drawn_by} drew, only the text"
    output().print(line, markup=False, soft_wrap=True)

"""Write one HTML file with everything about some runs: the headline, sortable tables, figures, mistakes, thresholds,
and the commands that make it again. With --check, compute every number of such a file again from the stored logits
and name what differs.

examples:
  calprompt report runs/coop-photos-16shot-seed1-0123456789ab
  calprompt report runs/main --out report.html
  calprompt report paper/pocket-main --runs runs/main --calibrators temperature dac
  calprompt report results.csv.xz --no-figures
  calprompt report --check report.html
"""

from __future__ import annotations

import argparse

from calprompt.cli.shared import add_flags, add_shared, checked_tolerance, say, settings_of
from calprompt.errors import Parameter, SettingError
from calprompt.files import check_output
from calprompt.progress import show_progress
from calprompt.report.page.document import ReportSettings
from calprompt.text import format_size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("places", nargs="*", metavar="PLACE", help="run folders, folders of runs, sweeps, tables of results")
    add("--out", default="report.html", metavar="FILE", help="file to write (default: %(default)s)")
    add("--runs", metavar="DIR", help="folder of the runs of a sweep; with --check, where the runs are now")
    add("--calibrators", nargs="+", metavar="NAME", help="calibrators to measure (default: those of the sweeps)")
    add("--check", metavar="FILE", help="compute all numbers of a report again and compare")
    add("--tolerance", type=float, metavar="X", help="largest difference for --check, in points (default: 0)")
    add_shared(parser, "quiet")
    add_flags(parser, ReportSettings)


def run(args: argparse.Namespace) -> None:
    """Write a page, or check one."""
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
    from calprompt.sweep.expansion import check_calibrator

    for spec in args.calibrators or ():
        check_calibrator(spec)
    out = check_output(args.out, (".html",), parameter="out")
    with show_progress(args.quiet) as progress:
        done = build_report(  # which alone holds the rows, so that they are gone when the page is written
            read_source(*args.places, out=args.runs, calibrators=args.calibrators, progress=progress),
            settings,
            near=out.parent,
            progress=progress,
        )
        write_report(done, out)
    say(*done.headline, *done.remarks, *done.notes, f"{out} ({format_size(out.stat().st_size)})")


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
    say(line)

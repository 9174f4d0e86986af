"""Draw a figure of results, one column of a paper wide, and write it as PNG, SVG or PDF. Sources are run folders,
folders of runs, tables of results, and sweeps that choose runs from them. Without a sweep, the paper's own one for the
figure chooses, if its runs are there.

examples:
  calprompt figure radar experiments/pocket.csv.xz paper/pocket-main --filter tuner=coop --out radar.png
  calprompt figure reliability runs/pocket paper/pocket-miscalibration --out reliability.pdf
  calprompt figure margins runs/pocket --split base --methods cross-entropy TCPT --out margins.svg
"""

from __future__ import annotations

import argparse

from calprompt.cli.shared import add_shared, filters, say
from calprompt.files import check_output
from calprompt.progress import show_progress

OPTIONS = ("split", "metric", "methods", "bins", "zero_shot")  # passed to the figure if given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from calprompt.report.figures import figures

    names = "\n".join(f"  {name:<17}{info.title}; from {info.needs}" for name, info in figures().items())
    parser.epilog = f"{parser.epilog}\n\nfigures, and what they are made from:\n{names}"
    add = parser.add_argument
    add("name", metavar="NAME", help="which figure, one of those below")
    add("sources", nargs="+", metavar="SOURCE", help="runs, tables of results, sweeps")
    add("--out", required=True, metavar="FILE", help="file to write: .png, .svg or .pdf")
    add_shared(parser, "filter")
    add("--split", metavar="SPLIT", help="only base, novel or all")
    add("--metric", metavar="NAME", help="which metric, such as ece, ace or accuracy")
    add("--methods", nargs="+", metavar="NAME", help="which methods, by the names in the figure and in this order")
    add("--bins", type=int, metavar="N", help="number of bins")
    add("--zero-shot", action="store_true", default=None, help="with the untuned model too")


def run(args: argparse.Namespace) -> None:
    """Draw the figure and write it."""
    from calprompt.metrics.binning import check_n_bins
    from calprompt.report.figures import draw, figure_info
    from calprompt.report.reliability import SUFFIXES, save_figure
    from calprompt.results.sources import read_source

    info = figure_info(args.name)
    check_output(args.out, SUFFIXES, parameter="out")
    if args.bins is not None:
        check_n_bins(args.bins, "bins")
    wanted = filters(args)
    with show_progress() as progress:
        source = read_source(*args.sources, usual=info.sweeps, progress=progress)
    source = source.filter(**wanted) if wanted else source
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    path = save_figure(draw(args.name, source, **options), args.out)
    say(path)

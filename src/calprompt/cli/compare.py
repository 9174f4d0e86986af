"""`calprompt compare`: runs or models side by side on the same images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.cli.console import output, show_progress
from calprompt.cli.flags import describe
from calprompt.errors import Parameter, SettingError
from calprompt.files import check_output
from calprompt.folder_kinds import MODEL, folder_kind
from calprompt.hardware import check_device

if TYPE_CHECKING:
    from rich.console import Console

    from calprompt.progress import Progress
    from calprompt.results.compare import Comparison, Contender
    from calprompt.runs.folder import Run

EXAMPLES = """\
  calprompt compare runs/coop-photos-16shot-seed1-0123456789ab runs/coop-photos-16shot-seed1-ba9876543210
  calprompt compare runs/pocket paper/pocket-time --out effects.png
  calprompt compare old-model new-model --data held-out/
"""
SUMMARY = ("accuracy", "ece", "ace")
FIGURES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare` to its parser."""
    describe(
        parser,
        "Compare runs, or fitted models, on the images that all of them answered: every metric with an\n"
        "interval, the paired difference to the first, and how often only one of two is right. Runs that differ in\n"
        "nothing but seed and data are one method. Models are compared on the images that all stored predictions of,\n"
        "or with --data on others.",
        EXAMPLES,
    )
    parser.set_defaults(command=compare)
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="run folders, folders of runs and sweeps; or folders of models")
    add("--out", metavar="FILE", help="write a figure: .png, .svg or .pdf")
    add("--json", metavar="FILE", help="write the numbers")
    add("--csv", metavar="FILE", help="write the numbers as a table")
    add("--data", help="labelled images to compare models on, which none of them learned from")
    add("--baseline", metavar="NAME", help="what the others are compared with (default: the first)")
    add("--zero-shot", action="store_true", help="with the untuned model of the runs")
    add("--bins", type=int, default=10, metavar="N", help="of calibration errors (default: 10)")
    add("--resamples", type=int, default=1000, metavar="N", help="draws for intervals (default: 1000)")
    add("--device", help="where to compute with --data: cpu, cuda, …")


def compare(args: argparse.Namespace) -> None:
    """Compare, print, and write what was asked for."""
    from calprompt.metrics.binning import check_n_bins
    from calprompt.results.compare import compare_contenders

    models = [place for place in args.source if folder_kind(place) == MODEL]
    if models and len(models) < len(args.source):
        other = next(place for place in args.source if place not in models)
        raise SettingError(
            f"{models[0]} is a fitted model and {other} is not; compare models with models, runs with runs"
        )
    check_n_bins(args.bins, "bins")
    if args.resamples < 1:
        raise SettingError(f"must be at least 1, got {args.resamples}", parameter="resamples")
    for name, suffixes in (("out", FIGURES), ("json", ()), ("csv", ())):
        if getattr(args, name) is not None:
            check_output(getattr(args, name), suffixes, parameter=name)
    with show_progress() as progress:
        contenders = _models(args, progress) if models else _runs(args, progress)
        found = compare_contenders(contenders, baseline=args.baseline, n_bins=args.bins, resamples=args.resamples)
    console = output()
    print_comparison(found, console)
    if args.out is not None:
        from calprompt.report.compare_figure import compare_figure
        from calprompt.report.reliability import save_figure

        save_figure(compare_figure(found), args.out)
    if args.json is not None:
        found.results.write_json(Path(args.json).expanduser())
    if args.csv is not None:
        found.results.write_csv(Path(args.csv).expanduser())
    for path in filter(None, (args.out, args.json, args.csv)):
        console.print(path, markup=False, soft_wrap=True)


def _models(args: argparse.Namespace, progress: Progress) -> list[Contender]:
    from calprompt.classifier.evaluating import measured_contenders, stored_contenders

    if args.zero_shot:
        raise SettingError(
            "is for runs; what the untuned model does is in the checks of a model's folder", parameter="zero_shot"
        )
    if args.device is not None:
        check_device(args.device)
        if args.data is None:
            raise SettingError("is for ", Parameter("data"), "; nothing is computed without it", parameter="device")
    if args.data is not None:
        from calprompt.data.labelled import labelled_images

        labelled_images(args.data)  # a wrong path is told before a model is read
    if args.data is None:
        return stored_contenders(args.source)
    return measured_contenders(args.source, args.data, device=args.device, progress=progress)


def _runs(args: argparse.Namespace, progress: Progress) -> list[Contender]:
    from calprompt.results.compare import run_contenders
    from calprompt.results.sources import read_source

    if args.device is not None:
        raise SettingError("is for models; runs are compared from their stored logits", parameter="device")
    if args.data is not None:
        raise SettingError(
            "is for models; evaluate runs on other data with 'calprompt transfer', then compare them", parameter="data"
        )
    source = read_source(*args.source, progress=progress)
    if not source.runs:
        raise SettingError(
            f"{source.title} has no folders of runs, whose logits a comparison needs; a table has only means"
        )
    given = {str(Path(place).expanduser().resolve()): at for at, place in enumerate(args.source)}

    def place(run: Run) -> tuple[int, bool]:
        """Runs in the order they were given; of a folder, cross-entropy first."""
        return given.get(str(run.folder.resolve()), len(given)), run.record["config"]["loss"] != "ce"

    return run_contenders(sorted(source.runs, key=place), zero_shot=args.zero_shot)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Tables of every dataset, who is right where, and means over datasets."""
    from rich.markup import escape

    from calprompt.cli.comparison_table import print_results
    from calprompt.cli.tables import create_table

    print_results(comparison.results, console)
    console.print()
    first = comparison.methods[0]
    heads = ["", "", "the other", "both", f"only {first}", "only the other", "neither"]
    table = create_table(
        [(name, "left" if place < 3 else "right") for place, name in enumerate(heads)],
        title=escape(f"How many images {first} and the other have right, all seeds together"),
    )
    for each in comparison.agreements:
        counts = (each.both, each.only_first, each.only_second, each.neither)
        total = sum(counts)
        shares = [f"{count:,} ({100 * count / total:.1f} %)" for count in counts]
        table.add_row(*map(escape, (each.dataset, each.split, each.second)), *shares)
    console.print(table)
    if comparison.summary:
        console.print()
        console.print(_summary_table(comparison))
    for note in comparison.notes:
        console.print(note, markup=False, soft_wrap=True)


def _summary_table(comparison: Comparison) -> Any:
    from rich.markup import escape

    from calprompt.cli.tables import create_table
    from calprompt.metrics import metric_info
    from calprompt.results.comparison import MINUS

    count = len(comparison.results.sizes)
    table = create_table(
        [("", "left"), ("", "left"), *((metric_info(name).label, "right") for name in SUMMARY)],
        title=escape(
            f"Mean differences to {comparison.methods[0]} over {count} datasets, in points [95 % interval with "
            "datasets as units]; * excludes 0"
        ),
    )
    for split, method in dict.fromkeys((split, method) for split, method, _ in comparison.summary):
        cells = [comparison.summary.get((split, method, name)) for name in SUMMARY]
        table.add_row(split, method.partition(MINUS)[0], *(escape("" if each is None else str(each)) for each in cells))
    return table

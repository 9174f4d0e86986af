"""Compare runs, or fitted models, on the images that all of them answered: every metric with an interval, the paired
difference to the first, and how often only one of two is right. Runs that differ only in seed and data are one method.
Models are compared on the images of which all stored predictions, or with --data on others.

examples:
  calprompt compare runs/coop-photos-16shot-seed1-0123456789ab runs/coop-photos-16shot-seed1-ba9876543210
  calprompt compare runs/pocket paper/pocket-time --out effects.png
  calprompt compare old-model new-model --data held-out/
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.cli.shared import output, say
from calprompt.errors import Parameter, SettingError
from calprompt.files import MODEL, check_output, folder_kind
from calprompt.hardware import check_device
from calprompt.progress import show_progress
from calprompt.report.table import DIFFERENCE as OF_TABLE
from calprompt.report.table import PLAIN, POINTS, Column, Number, Row, Table, metric_column
from calprompt.report.writers import WIDTH, terminal_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Picture

    from calprompt.progress import Progress
    from calprompt.results.compare import Comparison, Contender, Results
    from calprompt.runs.folder import Run

METRICS = ("accuracy", "ece", "ace", "mce")
SUMMARY = ("accuracy", "ece", "ace")
MINUS, DIFFERENCE = " minus ", "difference"
FIGURES = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", nargs="+", metavar="SOURCE", help="run folders, folders of runs and sweeps; or folders of models")
    add("--out", metavar="FILE", help="write a figure: .png, .svg or .pdf")
    add("--json", metavar="FILE", help="write the numbers as JSON")
    add("--csv", metavar="FILE", help="write the numbers as CSV")
    add("--data", help="labelled images to compare models on, which none of them learned from")
    add("--baseline", metavar="NAME", help="what the others are compared with (default: the first)")
    add("--zero-shot", action="store_true", help="with the untuned model of the runs")
    add("--bins", type=int, default=10, metavar="N", help="bins of the calibration errors (default: 10)")
    add("--resamples", type=int, default=1000, metavar="N", help="resamples for the intervals (default: 1000)")
    add("--device", help="where to compute with --data: cpu, cuda, …")


def run(args: argparse.Namespace) -> None:
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
        from calprompt.report.figures.methods import compare_figure
        from calprompt.report.reliability import save_figure

        save_figure(compare_figure(found), args.out)
    if args.json is not None:
        found.results.write_json(Path(args.json).expanduser())
    if args.csv is not None:
        found.results.write_csv(Path(args.csv).expanduser())
    say(*filter(None, (args.out, args.json, args.csv)))


def _models(args: argparse.Namespace, progress: Progress) -> list[Contender]:
    from calprompt.classifier.checks import measured_contenders, stored_contenders

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

        labelled_images(args.data)  # a wrong path is reported before a model is read
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


def print_results(results: Results, console: Console) -> None:
    """A table of every dataset, then what the numbers are."""
    tables = list(result_tables(results))
    unbounded = console.options.update(width=10 * WIDTH)
    if any(console.measure(table, options=unbounded).maximum > console.width for table in tables):
        tables = list(result_tables(results, narrow=True))
    for table in tables:
        console.print(table)
        console.print()
    for note in notes(results):
        console.print(note, markup=False, width=min(WIDTH, console.width))


def result_tables(results: Results, *, narrow: bool = False) -> Iterator[Picture]:
    """Methods down, metrics across, a table for each dataset; in a narrow one, intervals are under their numbers."""
    columns = (Column("method", ""), *map(metric_column, METRICS))
    points = Column(DIFFERENCE, DIFFERENCE, POINTS)
    several = len({row.method for row in results.rows if row.is_difference}) > 1
    for dataset, sizes in results.sizes.items():
        found: dict[tuple[str, str], dict[str, Number]] = {}
        for row in results.rows:
            if row.dataset == dataset:
                found.setdefault((row.split, row.method), {})[row.metric] = row.number
        rows = []
        for (split, method), numbers in found.items():
            name, minus, _ = method.partition(MINUS)
            label = f"{DIFFERENCE}, {name}" if minus and several else DIFFERENCE if minus else method
            cells = (numbers.get(metric, "") for metric in METRICS)
            rows.append(Row((label, *cells), group=split, measure=points if minus else None))
        counts = (f"{split} {size['images']} images of {size['classes']} classes" for split, size in sizes.items())
        table = Table("dataset", f"{dataset}: {', '.join(counts)}", "", columns, tuple(rows))
        picture = terminal_table(
            table, headings=True, between="\n" if narrow else " ", padding=(0,) if narrow else (0, 1, 0, 0)
        )
        picture.columns[0].no_wrap = True
        yield picture


def notes(results: Results) -> list[str]:
    """Explanations of the numbers, a line each."""
    settings = results.settings
    seeds = "1 seed" if settings["seeds"] == 1 else f"the mean of {settings['seeds']} seeds"
    covers = "test images" if settings["seeds"] == 1 else "test images and seeds"
    pairs = list(dict.fromkeys(row.method for row in results.rows if row.is_difference))
    others = {pair.partition(MINUS)[2] for pair in pairs}
    if len(pairs) > 1 and len(others) == 1:
        pairs = [f"a method minus {others.pop()}"]
    return [
        f"percent; {seeds} [95 % interval over {covers}, from {settings['resamples']} resamples]; "
        f"{settings['bins']} bins; MCE (textbook) is the largest gap of a bin, of which no interval is known to hold; "
        f"harmonic mean: of the accuracies on base and novel classes",
        "ECE and ACE are those of so many images, and so are their intervals; with more images they would be smaller",
        *(f"{DIFFERENCE}: {pair}, on the same images and seeds; * its interval excludes 0" for pair in pairs),
    ]


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Tables of every dataset, who is right where, and means over datasets."""
    print_results(comparison.results, console)
    console.print()
    first = comparison.methods[0]
    heads = ["", "", "the other", "both", f"only {first}", "only the other", "neither"]
    columns = (Column(name, name, *(() if place < 3 else (PLAIN,))) for place, name in enumerate(heads))
    rows = []
    for each in comparison.agreements:
        counts = (each.both, each.only_first, each.only_second, each.neither)
        shares = (f"{count:,} ({100 * count / sum(counts):.1f} %)" for count in counts)
        rows.append(Row((each.dataset, each.split, each.second, *shares)))
    title = f"How many images {first} and the other have right, all seeds together"
    console.print(terminal_table(Table("agreement", title, "", tuple(columns), tuple(rows))))
    if comparison.summary:
        console.print()
        console.print(terminal_table(_summary_table(comparison)))
    say(*comparison.notes)


def _summary_table(comparison: Comparison) -> Table:
    columns = [Column("split", ""), Column("method", "")]
    columns += [Column(name, metric_column(name).label, OF_TABLE, digits=2) for name in SUMMARY]
    rows = []
    for split, method in dict.fromkeys((split, method) for split, method, _ in comparison.summary):
        cells = (comparison.summary.get((split, method, name), "") for name in SUMMARY)
        rows.append(Row((split, method.partition(MINUS)[0], *cells)))
    title = (
        f"Mean differences to {comparison.methods[0]} over {len(comparison.results.sizes)} datasets, in points [95 % "
        "interval with datasets as units]; * excludes 0"
    )
    return Table("summary", title, "", tuple(columns), tuple(rows))

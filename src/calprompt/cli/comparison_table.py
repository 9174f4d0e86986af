"""A comparison as tables for a terminal: methods down, metrics across, a table a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from calprompt.cli.tables import WIDTH, create_table, format_metric
from calprompt.metrics import metric_info
from calprompt.results.comparison import HARMONIC, MINUS, Results, Row

COLUMNS = ("accuracy", "ece", "ace", "mce")
DIFFERENCE = "difference"


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


def result_tables(results: Results, *, narrow: bool = False) -> Iterator[Table]:
    """A table for each dataset; in a narrow one, intervals are under their numbers."""
    between = "\n" if narrow else " "
    for dataset, sizes in results.sizes.items():
        rows = [row for row in results.rows if row.dataset == dataset]
        counts = (f"{split} {size['images']} images of {size['classes']} classes" for split, size in sizes.items())
        table = create_table(
            [("", "left"), *((metric_info(name).label, "right") for name in COLUMNS)],
            title=escape(f"{dataset}: {', '.join(counts)}"),
            title_style="bold",
            padding=0 if narrow else (0, 1, 0, 0),
        )
        table.columns[0].no_wrap = True
        for split in dict.fromkeys(row.split for row in rows):
            table.add_section()
            table.add_row(f"[bold]{split}[/bold]")
            for method in dict.fromkeys(row.method for row in rows if row.split == split):
                by_metric = {row.metric: row for row in rows if (row.split, row.method) == (split, method)}
                label = _difference_label(method, results) if MINUS in method else method
                cells = (_cell(by_metric[metric], between) if metric in by_metric else "" for metric in COLUMNS)
                table.add_row(escape(label), *(escape(cell) for cell in cells))
        yield table


def notes(results: Results) -> list[str]:
    """What the numbers are, a line each."""
    settings = results.settings
    seeds = "1 seed" if settings["seeds"] == 1 else f"the mean of {settings['seeds']} seeds"
    covers = "test images" if settings["seeds"] == 1 else "test images and seeds"
    pairs = dict.fromkeys(row.method for row in results.rows if row.is_difference)
    return [
        f"percent; {seeds} [95 % interval over {covers}, from {settings['resamples']} resamples]; "
        f"{settings['bins']} bins; MCE (textbook) is the largest gap of a bin, of which no interval is known to hold; "
        f"{HARMONIC}: of the accuracies on base and novel classes",
        "ECE and ACE are those of so many images, and so are their intervals; with more images they would be smaller",
        *_difference_notes(list(pairs)),
    ]


def _difference_notes(pairs: Sequence[str]) -> list[str]:
    """What differences are: each pair, or once for all if they are to the same method."""
    rest = "on the same images and seeds; * its interval excludes 0"
    others = {pair.partition(MINUS)[2] for pair in pairs}
    if len(pairs) > 1 and len(others) == 1:
        return [f"{DIFFERENCE}: a method minus {others.pop()}, {rest}"]
    return [f"{DIFFERENCE}: {pair}, {rest}" for pair in pairs]


def _difference_label(pair: str, results: Results) -> str:
    """What stands left of a difference: with several of them, which method it is of."""
    several = len({row.method for row in results.rows if row.is_difference}) > 1
    return f"{DIFFERENCE}, {pair.partition(MINUS)[0]}" if several else DIFFERENCE


def _cell(row: Row, between: str) -> str:
    value, low, high = (
        format_metric(row.metric, number, difference=row.is_difference) for number in (row.value, row.low, row.high)
    )
    mark = "*" if row.is_difference and row.excludes_zero else ""
    return f"{value}{mark}" if row.low is None else f"{value}{mark}{between}[{low}, {high}]"

"""The text of a cell, the same in all renderings: value, spread, interval, marks."""

from __future__ import annotations

from collections.abc import Iterator

from calprompt.report.published import AGREES, APART, DIFFERS, NOT_RUN
from calprompt.report.tables.paper_table import Line, Measure, Number, PaperTable

NOTHING = "-"
FEWER = "†"  # a mean of fewer seeds than others
VERDICTS = {AGREES: "=", DIFFERS: "≠", NOT_RUN: ""}
PUBLISHED = "paper"


def cell_text(number: Number, measure: Measure, *, spread: bool = False) -> str:
    """Our number.

    >>> ece = Measure("ece", "ECE")
    >>> cell_text(Number(3.456, spread=0.5), ece, spread=True), cell_text(Number(), ece)
    ('3.46±0.50', '-')
    """
    if number.value is None:
        return NOTHING
    if number.interval is not None:
        return str(number.interval)
    text = f"{number.value:.{measure.decimals}f}"
    if spread and number.spread is not None:
        text += f"±{number.spread:.{measure.decimals}f}"
    return f"{text}{FEWER}" if number.lacking else text


def published_text(number: Number, measure: Measure) -> str:
    """The published number with a mark: = agrees with ours, ≠ differs, ~ cannot be compared, and none: was not run.

    >>> published_text(Number(6.1, published=5.09, row_mean=6.154, verdict=AGREES), Measure("ece", "ECE"))
    '5.09 (6.15)='
    """
    if number.published is None:
        return ""
    text = f"{number.published:.{measure.decimals}f}"
    if number.row_mean is not None:
        text += f" ({number.row_mean:.{measure.decimals}f})"
    return f"{text}{VERDICTS.get(number.verdict or '', '~')}"


def has_published(line: Line) -> bool:
    """Whether the paper has a number in a line."""
    return any(number.published is not None for number in line.numbers)


def all_notes(table: PaperTable, *, styled: bool = True) -> list[str]:
    """What stands under a table, a sentence each.

    Args:
        table: The table.
        styled: Whether the best numbers are shown as such.
    """
    return [*table.notes, *_marks(table, styled)]


def _marks(table: PaperTable, styled: bool) -> Iterator[str]:
    if any(number.lacking for line in table.lines for number in line.numbers):
        yield f"{FEWER} fewer seeds than the others"
    if table.ranks and styled:
        yield "bold: best of its group; underlined: second best"
    if table.has_published:
        counts: dict[str, int] = {}
        for line in table.lines:
            for number in line.numbers:
                if number.verdict:
                    counts[number.verdict] = counts.get(number.verdict, 0) + 1
        found = ", ".join(f"{count} {name}" for name, count in counts.items())
        yield (
            f"{PUBLISHED}: printed in the paper, not measured here; = agrees with ours within the 95 % interval of "
            f"seeds, ≠ differs, ~ cannot be compared, no mark: not run ({found})"
        )
    if any(number.row_mean is not None for line in table.lines for number in line.numbers):
        yield (
            f"(in brackets): the mean of the paper's own row, where its printed average is more than {APART:g} away; "
            "ours is compared with that mean"
        )

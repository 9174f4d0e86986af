"""Tables as Markdown, LaTeX, CSV, and for a terminal; the text of a cell is the same in all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from calprompt.evaluation.tables import csv_bytes
from calprompt.report.published import AGREES, APART, DIFFERS, NOT_RUN
from calprompt.report.tables.paper_table import Line, Measure, Number, PaperTable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


CSV = ("table", "split", "group", "method", "metric", "column", "value", "spread", "seeds", "low", "high")
THEIRS = 3  # how published numbers look, beside the best (1) and the second best (2)
MARKDOWN = {1: "**{}**", 2: "<u>{}</u>", THEIRS: "*{}*"}
LATEX = {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", THEIRS: r"\textit{{{}}}"}
SPECIAL = re.compile(r"[&%$#_{}~^\\]")
ESCAPES = {"~": r"$\sim$", "^": r"\^{}", "\\": r"\textbackslash{}"}
SIGNS = {"±": r"{\scriptsize$\pm$}", "≠": r"$\neq$", "†": r"$^\dagger$"}
NOTHING = "-"
FEWER = "†"  # a mean of fewer seeds than others
VERDICTS = {AGREES: "=", DIFFERS: "≠", NOT_RUN: ""}
PUBLISHED = "paper"
STYLES = {1: "bold green", 2: "underline"}
WIDTH = 100  # of notes


def to_markdown(table: PaperTable) -> str:
    """The table in Markdown, with a heading line, groups as bold lines, and its notes below.

    Args:
        table: Any table.
    """
    heads = [" ".join(column.headings) for column in table.columns]
    stub = [table.stub, *([""] if table.has_measures else [])]
    lines = [f"**{table.title}**", "", _row([*stub, *heads])]
    lines.append(_row([*("---" for _ in stub), *("---:" for _ in heads)]))
    for group, members in table.groups:
        if group and len(table.groups) > 1:
            lines.append(_row([f"**{_bars(group)}**", *("" for _ in (*stub[1:], *heads))]))
        lines += [_row(cells) for cells in _cells(table, members, MARKDOWN, _bars)]
    return "\n".join([*lines, "", *(f"{_bars(note)}." for note in all_notes(table)), ""])


def to_latex(table: PaperTable) -> str:
    r"""The table for a paper with `\usepackage{booktabs}`: best bold, second underlined, groups between rules.

    Args:
        table: Any table.
    """
    stub = 2 if table.has_measures else 1
    width = stub + len(table.columns)
    aligned = "l" * stub + "r" * len(table.columns)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(table.title)}. {'. '.join(map(_sentence, all_notes(table)))}.}}",
        rf"  \label{{tab:{'-'.join(filter(None, (table.name, table.split)))}}}",
        r"  \setlength{\tabcolsep}{4pt}",
        rf"  \begin{{tabular}}{{{aligned}}}",
        r"    \toprule",
    ]
    lines += [f"    {line}" for line in _latex_heads(table, stub)]
    for group, members in table.groups:
        lines.append(r"    \midrule")
        if group and len(table.groups) > 1:
            lines.append(rf"    \multicolumn{{{width}}}{{c}}{{\textbf{{{escape_latex(group)}}}}} \\")
            lines.append(r"    \midrule")
        lines += [rf"    {' & '.join(cells)} \\" for cells in _cells(table, members, LATEX, escape_latex)]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def to_csv(tables: Sequence[PaperTable]) -> bytes:
    """Tables as tidy CSV: a row per number, with its seeds, spread or interval, and what was published.

    Args:
        tables: Any tables; they have the same columns.
    """
    published = any(table.has_published for table in tables)
    columns = (*CSV, *(("published", "row_mean", "verdict") if published else ()))
    return csv_bytes(columns, (row for table in tables for row in _records(table, published)))


def escape_latex(text: str) -> str:
    r"""Text in which LaTeX finds no commands.

    >>> escape_latex("95 % of a_b"), escape_latex("3.4±0.1"), escape_latex("1~")
    ('95 \\% of a\\_b', '3.4{\\scriptsize$\\pm$}0.1', '1$\\sim$')
    """
    escaped = SPECIAL.sub(lambda found: ESCAPES.get(found[0], rf"\{found[0]}"), text)
    return "".join(SIGNS.get(letter, letter) for letter in escaped)


def _cells(
    table: PaperTable, members: Sequence[tuple[int, Line]], styles: dict[int, str], escape: Callable[[str], str]
) -> Iterator[list[str]]:
    """The cells of the lines of a group: a label only where it is new, and under each line what was published."""
    before = ""
    for place, line in members:
        shown = []
        for at, (number, column) in enumerate(zip(line.numbers, table.columns, strict=True)):
            text = escape(cell_text(number, table.measure(line, column), spread=table.spread))
            shown.append(styles.get(table.ranks.get((place, at), 0), "{}").format(text))
        measure = [escape(line.measure.label)] if line.measure else []
        yield [escape(line.label) if line.label != before else "", *measure, *shown]
        before = line.label
        if has_published(line):
            pairs = zip(line.numbers, table.columns, strict=True)
            theirs = [escape(published_text(number, table.measure(line, column))) for number, column in pairs]
            row = [PUBLISHED, *theirs] if not measure else ["", PUBLISHED, *theirs]
            yield [styles[THEIRS].format(text) if text else "" for text in row]


def _latex_heads(table: PaperTable, stub: int) -> Iterator[str]:
    """Headings, the widest first, with rules under those that span columns."""
    depth = len(table.columns[0].headings)
    for level in range(depth - 1):
        cells, rules, at = [""] * stub, [], stub + 1
        for _, same in groupby(table.columns, key=lambda column: column.headings[: level + 1]):
            columns = list(same)
            text, span = escape_latex(columns[0].headings[level]), len(columns)
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{text}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        yield rf"{' & '.join(cells)} \\"
        yield " ".join(rules)
    heads = [escape_latex(column.headings[-1]) for column in table.columns]
    yield rf"{' & '.join([escape_latex(table.stub), *[''] * (stub - 1), *heads])} \\"


def _records(table: PaperTable, published: bool) -> Iterator[dict[str, object]]:
    for line in table.lines:
        for number, column in zip(line.numbers, table.columns, strict=True):
            half = number.interval.half if number.interval else None
            ends = (number.value - half, number.value + half) if half is not None and number.value is not None else None
            record: dict[str, object] = {
                "table": table.name,
                "split": table.split,
                "group": line.group,
                "method": line.label,
                "metric": table.measure(line, column).name,
                "column": " ".join(column.headings),
                "value": _full(number.value),
                "spread": _full(number.spread),
                "seeds": len(number.seeds) or "",
                "low": _full(ends[0] if ends else None),
                "high": _full(ends[1] if ends else None),
            }
            if published:
                record |= {"published": _full(number.published), "row_mean": _full(number.row_mean)}
                record["verdict"] = number.verdict or ""
            yield record


def _full(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(note: str) -> str:
    return escape_latex(note[0].upper() + note[1:])


def _bars(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


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
    """What stands under a table, a sentence each."""
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


def print_table(table: PaperTable, console: Console) -> None:
    """Print a table and its notes.

    Args:
        table: Any table.
        console: Where to.
    """
    from rich import box
    from rich.table import Table

    picture = Table(
        title=_text(table.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    stub = [table.stub, *([""] if table.has_measures else [])]
    for heading in stub:
        picture.add_column(_text(heading), no_wrap=True, vertical="bottom")
    before: tuple[str, ...] = ()
    for column in table.columns:
        wide = column.headings[:-1]
        fresh = ["" if before[: at + 1] == wide[: at + 1] else name for at, name in enumerate(wide)]
        before = wide
        head = _text("\n".join([*fresh, column.headings[-1]]))
        picture.add_column(head, justify="right", no_wrap=True, vertical="bottom")
    for group, members in table.groups:
        picture.add_section()
        if group and len(table.groups) > 1:
            picture.add_row(_text(group, "bold"))
        label = ""
        for place, line in members:
            picture.add_row(*_stub(line, label), *_numbers(table, place, line))
            label = line.label
            if has_published(line):
                pairs = zip(line.numbers, table.columns, strict=True)
                theirs = [published_text(number, table.measure(line, column)) for number, column in pairs]
                name = ["", PUBLISHED] if line.measure else [f"  {PUBLISHED}"]
                picture.add_row(*(_text(text, "dim italic") for text in (*name, *theirs)))
    console.print(picture, soft_wrap=True)
    for note in all_notes(table, styled=console.is_terminal):
        console.print(note, markup=False, width=min(WIDTH, console.width))


def _stub(line: Line, before: str) -> list[Text]:
    label = line.label if line.label != before else ""
    return [_text(label), *([_text(line.measure.label)] if line.measure else [])]


def _numbers(table: PaperTable, place: int, line: Line) -> list[Text]:
    found = []
    for at, (number, column) in enumerate(zip(line.numbers, table.columns, strict=True)):
        text = cell_text(number, table.measure(line, column), spread=table.spread)
        found.append(_text(text, STYLES.get(table.ranks.get((place, at), 0), "")))
    return found


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)

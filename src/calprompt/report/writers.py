"""Tables as text: Markdown, LaTeX and CSV, and for a terminal. What a cell says is the same in all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from calprompt.files import csv_bytes
from calprompt.report.table import DIFFERENCES, PLAIN, TEXT, Column, Number, Row, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Picture
    from rich.text import Text

CSV = ("table", "split", "group", "method", "metric", "column", "value", "spread", "seeds", "low", "high")
BEST, SECOND, PRINTED = 1, 2, 3  # ranks, and numbers that a paper printed
MARKDOWN = {BEST: "**{}**", SECOND: "<u>{}</u>", PRINTED: "*{}*"}
LATEX = {BEST: r"\textbf{{{}}}", SECOND: r"\underline{{{}}}", PRINTED: r"\textit{{{}}}"}
TERMINAL = {BEST: "bold green", SECOND: "underline", PRINTED: "dim italic"}
SPECIAL = re.compile(r"[&%$#_{}~^\\]")
ESCAPES = {"~": r"$\sim$", "^": r"\^{}", "\\": r"\textbackslash{}"}
SIGNS = {"±": r"{\scriptsize$\pm$}", "≠": r"$\neq$", "†": r"$^\dagger$"}
NOTHING = "-"
FEWER_SEEDS = "†"  # a mean of fewer seeds than others
AGREES, DIFFERS, NOT_RUN = "agrees", "differs", "not run"
VERDICTS = {AGREES: "=", DIFFERS: "≠", NOT_RUN: ""}
PAPER = "paper"
AVERAGE_GAP = 0.1  # from which on a printed average is not the mean of its row: more than rounding explains
WIDTH = 100  # characters of a line of text


def cell_text(number: Number, measure: Column, *, spread: bool = False) -> str:
    """Our number, with its interval if it is a difference, and with its spread if that was asked for.

    >>> ece = Column("ece", "ECE", "plain", digits=2)
    >>> cell_text(Number(3.456, spread=0.5), ece, spread=True), cell_text(Number(), ece)
    ('3.46±0.50', '-')
    """
    if number.value is None or measure.kind in DIFFERENCES:
        return measure.line(number, empty=NOTHING)
    text = measure.number(number.value)
    if spread and number.spread is not None:
        text += f"±{measure.number(number.spread)}"
    return f"{text}{FEWER_SEEDS}" if number.lacking else text


def published_text(number: Number, measure: Column) -> str:
    """The published number with a mark: = agrees with ours, ≠ differs, ~ cannot be compared, and none: was not run.

    >>> published_text(Number(6.1, published=5.09, row_mean=6.154, verdict=AGREES), Column("", "", "plain", digits=2))
    '5.09 (6.15)='
    """
    if number.published is None:
        return ""
    text = measure.number(number.published)
    if number.row_mean is not None:
        text += f" ({measure.number(number.row_mean)})"
    return f"{text}{VERDICTS.get(number.verdict or '', '~')}"


def all_notes(table: Table, *, styled: bool = True) -> list[str]:
    """What stands under a table, a sentence each."""
    numbers = [number for row in table.rows for number in row.numbers]
    notes = list(table.notes)
    if any(number.lacking for number in numbers):
        notes.append(f"{FEWER_SEEDS} fewer seeds than the others")
    if table.ranks and styled:
        notes.append("bold: best of its group; underlined: second best")
    if table.has_published:
        verdicts = [number.verdict for number in numbers if number.verdict]
        found = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
        notes.append(
            f"{PAPER}: printed in the paper, not measured here; = agrees with ours within the 95 % interval of "
            f"seeds, ≠ differs, ~ cannot be compared, no mark: not run ({found})"
        )
    if any(number.row_mean is not None for number in numbers):
        notes.append(
            f"(in brackets): the mean of the paper's own row, where its printed average is more than {AVERAGE_GAP:g} "
            "away; ours is compared with that mean"
        )
    return notes


def to_markdown(table: Table) -> str:
    """The table in Markdown, with a heading line, groups as bold lines, and its notes below."""
    heads = [" ".join((*column.above, column.label)) for column in table.columns]
    rules = ["---" if at < table.names else "---:" for at in range(len(heads))]
    lines = [f"**{table.title}**", "", _bars_between(heads), _bars_between(rules)]
    for group, members in table.groups:
        if group and len(table.groups) > 1:
            lines.append(_bars_between([f"**{_escape_markdown(group)}**", *("" for _ in heads[1:])]))
        lines += [_bars_between(cells) for cells in _cells(table, members, MARKDOWN, _escape_markdown)]
    return "\n".join([*lines, "", *(f"{_escape_markdown(note)}." for note in all_notes(table)), ""])


def to_latex(table: Table) -> str:
    r"""The table for a paper with `\usepackage{booktabs}`: best bold, second underlined, groups between rules."""
    notes = ". ".join(escape_latex(note[0].upper() + note[1:]) for note in all_notes(table))
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(table.title)}. {notes}.}}",
        rf"  \label{{tab:{'-'.join(filter(None, (table.key, table.split)))}}}",
        r"  \setlength{\tabcolsep}{4pt}",
        rf"  \begin{{tabular}}{{{'l' * table.names + 'r' * len(table.number_columns)}}}",
        r"    \toprule",
    ]
    lines += [f"    {line}" for line in _latex_heads(table)]
    for group, members in table.groups:
        lines.append(r"    \midrule")
        if group and len(table.groups) > 1:
            lines.append(rf"    \multicolumn{{{len(table.columns)}}}{{c}}{{\textbf{{{escape_latex(group)}}}}} \\")
            lines.append(r"    \midrule")
        lines += [rf"    {' & '.join(cells)} \\" for cells in _cells(table, members, LATEX, escape_latex)]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def _latex_heads(table: Table) -> Iterator[str]:
    """Headings, the widest first, with rules under those that span columns."""
    columns, names = table.number_columns, table.names
    for level in range(len(columns[0].above)):
        cells, rules, at = [""] * names, [], names + 1
        for _, same in groupby(columns, key=lambda column: column.above[: level + 1]):
            spanned = list(same)
            cells.append(rf"\multicolumn{{{len(spanned)}}}{{c}}{{{escape_latex(spanned[0].above[level])}}}")
            rules.append(rf"\cmidrule(lr){{{at}-{at + len(spanned) - 1}}}")
            at += len(spanned)
        yield rf"{' & '.join(cells)} \\"
        yield " ".join(rules)
    yield rf"{' & '.join(escape_latex(column.label) for column in table.columns)} \\"


def _cells(
    table: Table, members: Sequence[tuple[int, Row]], styles: Mapping[int, str], escape: Callable[[str], str]
) -> Iterator[list[str]]:
    """The cells of the rows of a group: a label only where it is new, and under each row what was published."""

    def write(number: Number, measure: Column) -> str:
        return cell_text(number, measure, spread=table.spread)

    for row, texts in _texts(table, members, write):
        if row is None:
            yield [styles[PRINTED].format(escape(text)) if text else "" for text, _ in texts]
        else:
            yield [styles.get(rank, "{}").format(escape(text)) for text, rank in texts]


def _texts(
    table: Table, members: Sequence[tuple[int, Row]], write: Callable[[Number, Column], str]
) -> Iterator[tuple[Row | None, list[tuple[str, int]]]]:
    """Text and rank of the cells of each row; and, without a row, of the published numbers under it."""
    names, before = table.names, ""
    for place, row in members:
        pairs = list(zip(row.cells, table.columns, strict=True))
        shown = [cell if isinstance(cell, str) else write(cell, table.measure(row, column)) for cell, column in pairs]
        shown[0] = "" if row.measure and row.label == before else shown[0]
        yield row, [(text, table.ranks.get((place, at), 0)) for at, text in enumerate(shown)]
        before = row.label
        if row.has_published:
            printed = [
                published_text(cell, table.measure(row, column)) if isinstance(cell, Number) else ""
                for cell, column in pairs
            ]
            printed[names - 1] = PAPER
            yield None, [(text, PRINTED) for text in printed]


def to_csv(tables: Sequence[Table]) -> bytes:
    """Tables as tidy CSV: a row per number, with its seeds, spread or interval, and what was published."""
    published = any(table.has_published for table in tables)
    columns = (*CSV, *(("published", "row_mean", "verdict") if published else ()))
    return csv_bytes(columns, (row for table in tables for row in _records(table, published)))


def _records(table: Table, published: bool) -> Iterator[dict[str, object]]:
    for row in table.rows:
        for number, column in zip(row.numbers, table.number_columns, strict=True):
            record: dict[str, object] = {
                "table": table.key,
                "split": table.split,
                "group": row.group,
                "method": row.label,
                "metric": table.measure(row, column).key,
                "column": " ".join((*column.above, column.label)),
                "value": _full(number.value),
                "spread": _full(number.spread),
                "seeds": len(number.seeds) or "",
                "low": _full(number.low),
                "high": _full(number.high),
            }
            if published:
                record |= {"published": _full(number.published), "row_mean": _full(number.row_mean)}
                record["verdict"] = number.verdict or ""
            yield record


def _full(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _bars_between(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_markdown(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


def escape_latex(text: str) -> str:
    r"""Text in which LaTeX finds no commands.

    >>> escape_latex("95 % of a_b"), escape_latex("3.4±0.1"), escape_latex("1~")
    ('95 \\% of a\\_b', '3.4{\\scriptsize$\\pm$}0.1', '1$\\sim$')
    """
    escaped = SPECIAL.sub(lambda found: ESCAPES.get(found[0], rf"\{found[0]}"), text)
    return "".join(SIGNS.get(letter, letter) for letter in escaped)


def terminal_table(
    table: Table,
    *,
    compact: bool = False,
    headings: bool = False,
    between: str = " ",
    padding: tuple[int, ...] = (0, 1, 0, 0),
    vertical: str = "bottom",
) -> Picture:
    """The table for a terminal, groups under bold names."""
    from rich import box
    from rich.table import Table as Picture

    picture = Picture(
        title=_text(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        caption=_text(table.caption) if table.caption else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=padding,  # type: ignore[arg-type]
        pad_edge=False,
        show_edge=False,
    )
    before: tuple[str, ...] = ()
    for column in table.columns:
        fresh = ["" if before[: at + 1] == column.above[: at + 1] else name for at, name in enumerate(column.above)]
        before = column.above
        picture.add_column(
            _text("\n".join([*fresh, column.label])),
            justify="left" if column.kind == TEXT else "right",
            no_wrap=compact,
            overflow="ellipsis" if compact else "fold",
            vertical=vertical,  # type: ignore[arg-type]
        )

    def write(number: Number, measure: Column) -> str:
        return cell_text(number, measure, spread=table.spread) if compact else measure.line(number, between=between)

    for group, members in table.groups:
        picture.add_section()
        if group and (headings or len(table.groups) > 1):
            picture.add_row(_text(group, "bold"))
        for row, texts in _texts(table, members, write):
            if row is None and table.names == 1:
                texts[0] = (f"  {PAPER}", PRINTED)
            picture.add_row(*(_text(text, TERMINAL.get(rank, "")) for text, rank in texts))
    return picture


def text_table(
    columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], *, vertical: str = "bottom"
) -> Picture:
    """Rows of text for a terminal, below headings that are aligned left or right."""
    shown = tuple(Column(name, name, PLAIN if side == "right" else TEXT) for name, side in columns)
    return terminal_table(Table("", "", "", shown, tuple(Row(tuple(cells)) for cells in rows)), vertical=vertical)


def plain_text(table: Table) -> str:
    """The table as aligned lines that are never folded, for tables too long for a terminal."""
    cells = [[column.label for column in table.columns]]
    cells += [[column.line(cell) for column, cell in zip(table.columns, row.cells, strict=True)] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [column.kind != TEXT for column in table.columns]
    lines = [
        " ".join(text.rjust(w) if r else text.ljust(w) for text, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], " ".join("─" * width for width in widths), *lines[1:], table.caption])


def print_table(table: Table, console: Console) -> None:
    """Print a table of means and its notes."""
    console.print(terminal_table(table, compact=True), soft_wrap=True)
    for note in all_notes(table, styled=console.is_terminal):
        console.print(note, markup=False, width=min(WIDTH, console.width))


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)

"""Tables for a terminal: best bold, second underlined, published numbers dim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.report.tables.cell_text import PUBLISHED, all_notes, cell_text, has_published, published_text
from calprompt.report.tables.paper_table import Line, PaperTable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES = {1: "bold green", 2: "underline"}
WIDTH = 100  # of notes


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

"""Tables for a terminal: one look for all commands, and metrics written with their label, unit and sign."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table

WIDTH = 100  # of lines of text


def create_table(columns: Iterable[tuple[str, str]], *, title: str | None = None, **style: Any) -> Table:
    """A table in the look of all commands."""
    vertical = style.pop("vertical", "bottom")
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = Table(title=title, title_justify="left", **look | style)
    for heading, side in columns:
        table.add_column(heading, justify=side, overflow="fold", vertical=vertical)  # type: ignore[arg-type]
    return table


def format_metric(name: str, value: float | None, *, difference: bool = False) -> str:
    """A metric's value as people read it: percent with two digits, or as it is with three; n/a if there is none.

    >>> format_metric("ece", 0.0345), format_metric("nll", 1.25), format_metric("confidence_gap", 0.02)
    ('3.45', '1.250', '+2.00')
    """
    from calprompt.metrics import metric_info

    if value is None:
        return "n/a"
    info = metric_info(name)
    sign = "+" if difference or info.signed else ""
    return f"{100 * value:{sign}.2f}" if info.unit == "%" else f"{value:{sign}.3f}"

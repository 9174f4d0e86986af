"""How results look in a notebook: a card of escaped text with a table and bars, which needs no style sheet."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_CARD = "border:1px solid #8886;border-radius:6px;padding:.6em .9em;display:inline-block;max-width:46em"
_BAR = "display:inline-block;width:8em;height:.7em;background:#8883;vertical-align:middle"
_FULL = "display:block;height:100%;background:#3b7dbd"


def card(title: str, rows: Iterable[tuple[str, float | str]], notes: Iterable[str] = ()) -> str:
    """A card in HTML.

    >>> "90.0 %" in card("cat.jpg", [("cat", 0.9)], ["<none>"])
    True
    """
    lines = "".join(f"<tr><td>{escape(name)}</td><td>{_value(value)}</td></tr>" for name, value in rows)
    paragraphs = "".join(f'<p style="margin:.3em 0">{escape(note)}</p>' for note in notes)
    return f'<div style="{_CARD}"><b>{escape(title)}</b><table>{lines}</table>{paragraphs}</div>'


def _value(value: float | str) -> str:
    if isinstance(value, str):
        return escape(value)
    filled = f'<span style="{_FULL};width:{100 * min(max(value, 0.0), 1.0):.1f}%"></span>'
    return f'<span style="{_BAR}">{filled}</span> {100 * value:.1f} %'

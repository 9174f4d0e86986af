"""What commands print to: standard output for results, standard error for progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calprompt.progress_display import show_progress

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["output", "show_progress"]


def output() -> Console:
    """Standard output, wide enough for a table when it goes to a file."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)

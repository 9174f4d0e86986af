"""The command line: a file for each command, each a few lines over the library."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, as `calprompt.cli.app.main` does; `doctor` also where a package that the others need is broken.

    Args:
        arguments: Those of the command line, unless given.

    Returns:
        The exit code.
    """
    try:
        from calprompt.cli.app import main as run
    except ImportError as error:
        if (error.name or "").startswith("calprompt"):
            raise
        from calprompt.cli.doctor import run_alone

        return run_alone(sys.argv[1:] if arguments is None else arguments, error)
    return run(arguments)

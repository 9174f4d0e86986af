"""The command line: a file for each command, each a few lines over the library."""

from __future__ import annotations

from calprompt.cli.app import main

__all__ = ["main"]

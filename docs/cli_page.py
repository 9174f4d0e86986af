"""Writes docs/cli.md, the reference of the command line, from the parser itself: python docs/cli_page.py"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from calprompt.cli.app import create_parser

PAGE = Path(__file__).with_name("cli.md")
HEAD = """\
# Command line

Every command answers `--help`. The exit status is 0 if the command worked, 2 for a mistake in what it was given, and
130 if it was interrupted; `calprompt doctor` ends with 1 if it found a problem, and `calprompt sweep` if a run failed.
Flags of `train` override the recipe, which overrides the defaults.
"""


def page() -> str:
    """The page as it should be."""
    return HEAD + "".join(section(parser, 2) for parser in commands(create_parser(complete=True)).values())


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser by name."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def section(parser: argparse.ArgumentParser, level: int) -> str:
    """A heading, what the command does, its flags, its examples, and the commands in it."""
    text = f"\n{'#' * level} {parser.prog}\n"
    if parser.description:
        text += f"\n{cell(parser.description)}\n"
    inner = commands(parser)
    rows = [row(action) for action in parser._actions if shown(action)]
    if rows:
        text += "\n| argument | |\n|---|---|\n" + "".join(rows)
    if parser.epilog:
        lines = [line.strip() for line in parser.epilog.splitlines() if line.strip().startswith("calprompt ")]
        text += "\n```\n" + "".join(f"{line}\n" for line in lines) + "```\n" if lines else f"\n{cell(parser.epilog)}\n"
    return text + "".join(section(one, level + 1) for one in inner.values())


def shown(action: argparse.Action) -> bool:
    """Whether an argument has a row: commands have sections, and --help is the same everywhere."""
    return not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)


def row(action: argparse.Action) -> str:
    """A row of the table: the argument, and its help."""
    name = action.option_strings[-1] if action.option_strings else ""
    value = ""
    if action.nargs != 0:
        metavar = action.metavar or (
            "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
        )
        value = str(metavar) + (" …" if action.nargs in ("+", "*") else "")
    required = " (required)" if action.option_strings and action.required else ""
    about = (action.help or "") % {"default": action.default, "prog": ""} if "%" in (action.help or "") else action.help
    return f"| `{f'{name} {value}'.strip()}` | {cell(about or '')}{required} |\n"


def cell(text: str) -> str:
    """Text as Markdown shows it literally, on one line."""
    line = " ".join(text.split())
    for sign in ("\\", "|", "*", "_", "<", "[", "]"):
        line = line.replace(sign, f"\\{sign}")
    return line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")

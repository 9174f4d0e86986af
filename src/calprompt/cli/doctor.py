"""`calprompt doctor`: what this machine and this installation are, what does not work, and what to do about it."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import calprompt
from calprompt.cli.flags import describe
from calprompt.text import plural, visible

if TYPE_CHECKING:
    from calprompt.doctor.examination import Finding

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
STATUS, NAME = 8, 25  # widths of columns
EXAMPLES = """\
  calprompt doctor
  calprompt doctor --json > doctor.json
  calprompt doctor --gpu
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor` to its parser."""
    describe(
        parser,
        "Check this machine and this installation: versions, extras, devices, the cache folder, which\n"
        "CLIPs are there, whether the pocket works and how fast it is. Each line is ok, a note or a\n"
        "problem, with advice. Needs no network. Exits with 0 if nothing is a problem, with 1 if something is.",
        EXAMPLES,
    )
    parser.set_defaults(command=doctor)
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")
    parser.add_argument(
        "--gpu", action="store_true", help="instead, train every tuner on the GPU and compare it with the CPU"
    )


def doctor(args: argparse.Namespace) -> int:
    """Print the findings as they come."""
    from calprompt.doctor.examination import CHECKS, GPU_CHECKS, examine

    found: list[Finding] = []
    for finding in examine(GPU_CHECKS if args.gpu else CHECKS):
        if not args.json:
            if not found or finding.section != found[-1].section:
                _write([("", "\n" if found else ""), ("bold", finding.section)])
            _write(_lines(finding))
        found.append(finding)
    problems, notes = (sum(each.status == status for each in found) for status in ("problem", "note"))
    if args.json:
        record: dict[str, Any] = {"calprompt": calprompt.__version__, "problems": problems, "notes": notes}
        record["findings"] = [asdict(each) for each in found]
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    else:
        counts = [
            plural(problems, "problem") if problems else "no problems",
            *([plural(notes, "note")] if notes else []),
        ]
        _write([("", f"\n{', '.join(counts)}")])
    return 1 if problems else 0


def _lines(finding: Finding) -> list[tuple[str, str]]:
    """A finding as pieces of text in a style each: what was found beside its name, advice below."""
    indent = " " * (STATUS + NAME + 4)
    width = max(20, shutil.get_terminal_size((120, 24)).columns - len(indent)) if sys.stdout.isatty() else 10_000

    def wrap(text: str) -> str:
        return f"\n{indent}".join(textwrap.wrap(visible(text), width, break_on_hyphens=False))

    pieces = [("", "  "), (COLOURS[finding.status], f"{finding.status:<{STATUS}} ")]
    pieces.append(("", f"{visible(finding.name):<{NAME}} {wrap(finding.value)}"))
    if finding.advice:
        pieces += [("", f"\n{indent}"), ("italic", wrap(finding.advice))]
    return pieces


def _write(pieces: list[tuple[str, str]]) -> None:
    """One line or more on standard output; without colours if even the library for them is missing."""
    try:
        from rich.text import Text

        from calprompt.cli.console import output
    except ImportError:
        sys.stdout.write("".join(text for _, text in pieces) + "\n")
    else:
        output().print(Text.assemble(*((text, style) for style, text in pieces)), soft_wrap=True)
    sys.stdout.flush()

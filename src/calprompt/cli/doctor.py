"""Check this machine and this installation: versions, extras, devices, the cache folder, which CLIPs are available,
whether the pocket model works and how fast it is. Each line is ok, a note or a problem, with advice. Needs no network.
The exit status is 1 if something is a problem, else 0.

examples:
  calprompt doctor
  calprompt doctor --json > doctor.json
  calprompt doctor --gpu
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import calprompt
from calprompt.text import plural, visible

if TYPE_CHECKING:
    from calprompt.doctor.examination import Finding

COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}
STATUS, NAME = 8, 25  # widths of columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    gpu = "instead, train every tuner on the GPU and compare it with the CPU"
    parser.add_argument("--gpu", action="store_true", help=gpu)


def run(args: argparse.Namespace) -> int:
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

        from calprompt.cli.shared import output
    except ImportError:
        sys.stdout.write("".join(text for _, text in pieces) + "\n")
    else:
        output().print(Text.assemble(*((text, style) for style, text in pieces)), soft_wrap=True)
    sys.stdout.flush()

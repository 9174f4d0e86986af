"""What the README shows works: its Python blocks run, its commands parse, its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import samples
from calprompt.cli import parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), ids=lambda code: code.split("\n")[0]
)
def test_python_blocks_run(code: str) -> None:
    exec(compile(code.replace("weights/ViT-B-16.pt", str(samples.backbone())), "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines() if line.startswith("calprompt ")]
    for command in commands:
        words = [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|[^\s]+", command.split(" #")[0])]
        parser().parse_args(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target

"""What README and docs show works: Python blocks of the README run, commands parse, links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import samples
from calprompt.cli.app import create_parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITHOUT_COMMANDS = ("backbones.md", "dependencies.md", "pocket-results.md", "pocket-tables.md")
FENCED = r"```\w*\n(.*?)```"
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), ids=lambda code: code.split("\n")[0]
)
def test_python_blocks_run(code: str) -> None:
    exec(compile(code.replace("weights/ViT-B-16.pt", str(samples.backbone())), "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page: Path) -> None:
    blocks = re.findall(FENCED, page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("calprompt ")]
    assert bool(commands) == (page.name not in WITHOUT_COMMANDS)
    for command in commands:
        words = [word.strip("\"'") for word in re.findall(r"\"[^\"]*\"|'[^']*'|[^\s]+", command.split(" #")[0])]
        create_parser().parse_args(words[1:])


def prose(page: Path) -> str:
    return re.sub(FENCED, "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
        found.append(re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-"))
    before = [found[:number].count(anchor) for number, anchor in enumerate(found)]
    return {f"{anchor}-{count}" if count else anchor for anchor, count in zip(found, before, strict=True)}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        if "://" not in target and not (place.exists() and (not anchor or anchor in anchors(place))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    assert broken_links(page) == []


def test_links_to_pages_and_headings_that_are_not_there_are_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# `a_b`, [c](#d) & D?\n\n## Again\n\n## Again\n\n```bash\n# no heading\n```\n")
    right = ["other.md", "other.md#a_b-c--d", "other.md#again", "other.md#again-1", "#here", "https://a.b/c.md#d"]
    wrong = ["none.md", "none.md#again", "other.md#again-2", "other.md#no-heading", "other.md#here", "#again"]
    page.write_text("# Here\n\n" + "".join(f"[to]({target})\n" for target in right + wrong))
    assert broken_links(page) == wrong

"""The README is short and right. Its links, commands and code are tested with those of all pages, in test_docs_site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 130


def test_the_pictures_are_small() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", TEXT)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < 200_000


def test_the_pythons_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert f"Python {', '.join(versions[:-1])} and {versions[-1]}" in TEXT
    assert project["requires-python"] == f">={versions[0]}"

"""The pages of the documentation: links, navigation, code and commands, checked on the Markdown without building."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import calprompt
from calprompt import pocket
from calprompt.cli.app import create_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
ELSEWHERE = {  # pages whose Python blocks have tests of their own, with the files that they need
    "add-a-loss-or-calibrator.md": "calibrators/test_extension_page.py",
    "add-a-tuner.md": "tuners/test_docs.py",
    "data.md": "data/test_docs.py",
    "demo.md": "test_demo.py",
    "evaluate.md": "test_evaluate.py",
    "export.md": "export/test_docs.py",
    "serve-api.md": "serve/test_api_page.py",
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OBJECT = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
ROOMS = ["tuners", "losses", "calibrators", "metrics"]  # they export names of their modules


def text_of(page: Path) -> str:
    """A page with the files that the site includes in it."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r'^--8<-- "(.*)"$', lambda found: text_of(ROOT / found[1]), text, flags=re.MULTILINE)


def prose(page: Path) -> str:
    return FENCED.sub("", text_of(page))


def blocks(page: Path, language: str) -> list[str]:
    return [code for name, code in FENCED.findall(text_of(page)) if name == language]


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub and the site make them, and of objects of the reference."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip())
        found.append(re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-"))
    before = [found[:number].count(anchor) for number, anchor in enumerate(found)]
    numbered = {f"{anchor}-{count}" if count else anchor for anchor, count in zip(found, before, strict=True)}
    return numbered | set(OBJECT.findall(text_of(page)))


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        if "://" not in target and not (place.exists() and (not anchor or anchor in anchors(place))):
            broken.append(target)
    return broken


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_exist(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)
def test_pages_of_the_site_link_only_into_it(page: Path) -> None:
    """A link to a file outside of docs/ is dead on the site."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        file = target.partition("#")[0]
        assert "://" in target or (page.parent / file).resolve().is_relative_to(DOCS), target


def test_links_to_pages_and_headings_that_are_not_there_are_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    headings = "# `a_b`, [c](#d) & D?\n\n## Again\n\n## Again\n\n```bash\n# no heading\n```\n"
    other.write_text(f"{headings}\n::: calprompt.run\n")
    right = ["other.md", "other.md#a_b-c--d", "other.md#again", "other.md#again-1", "#here", "https://a.b/c.md#d"]
    right += ["other.md#calprompt.run"]
    wrong = ["none.md", "none.md#again", "other.md#again-2", "other.md#no-heading", "other.md#here", "#again"]
    wrong += ["other.md#calprompt.plan"]
    page.write_text("# Here\n\n" + "".join(f"[to]({target})\n" for target in right + wrong))
    assert broken_links(page) == wrong


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def leaves(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from leaves(value)


def test_the_navigation_has_every_page_once_and_only_pages_that_exist() -> None:
    listed = sorted(leaves(settings()["nav"]))
    assert listed == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_site_asks_no_other_host() -> None:
    """No fonts of others; styles, scripts and pictures are files of the site."""
    site = settings()
    assert site["theme"]["font"] is False
    assert all((DOCS / path).is_file() for path in site.get("extra_css", []) + site.get("extra_javascript", []))
    assert not re.search(r"url\(|@import", (DOCS / "site.css").read_text(encoding="utf-8"))
    for page in PAGES:
        assert not re.search(r"!\[[^]]*\]\(\w+://|<(img|script|iframe|link)\b", prose(page)), page


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse(page: Path) -> None:
    for _, block in FENCED.findall(text_of(page)):
        for line in block.splitlines():
            command = line.removeprefix("$ ")
            if command.startswith("calprompt "):
                words = shlex.split(re.split(r" #| > ", command)[0])
                create_parser().parse_args(words[1:])


def test_the_reference_of_the_command_line_is_that_of_the_parser() -> None:
    spec = importlib.util.spec_from_file_location("cli_page", DOCS / "cli_page.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "python docs/cli_page.py writes it again"


def documented() -> dict[str, str]:
    """Objects of the reference, and the page that has them."""
    found = [(name, page) for page in (DOCS / "api").glob("*.md") for name in OBJECT.findall(text_of(page))]
    assert len({name for name, _ in found}) == len(found), "an object is on two pages"
    return {name: name_of(page) for name, page in found}


def test_the_reference_has_every_public_name_and_only_names_that_exist() -> None:
    names = documented()
    listed = set(re.findall(r"^\| \[`(\w+)`\]", (DOCS / "api" / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == set(calprompt.__all__) - {"__version__"}
    assert {f"calprompt.{name}" for name in listed} <= set(names)
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_has_what_a_room_exports(room: str) -> None:
    names, page = set(documented()), text_of(DOCS / "api" / f"{room}.md")
    for name, thing in vars(importlib.import_module(f"calprompt.{room}")).items():
        if name.startswith("_") or isinstance(thing, ModuleType):
            continue
        shown = {f"calprompt.{name}", f"calprompt.{room}.{name}"} & names
        assert shown or re.search(rf"`@?({room}\.)?{name}\b", page), f"docs/api/{room}.md does not mention {name}"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of pocket_photos, so that the examples take seconds."""
    whole, part = pocket.folder("photos"), tmp_path_factory.mktemp("part") / "photos"
    for split, each in (("train", 10), ("val", 4), ("test", 6)):
        for folder in (whole / split).iterdir():
            (part / split / folder.name).mkdir(parents=True)
            for picture in sorted(folder.iterdir())[:each]:
                shutil.copy(picture, part / split / folder.name)
    return part


WITH_PYTHON = [page for page in PAGES if page.name not in ELSEWHERE and blocks(page, "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_blocks_run(page: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, as a reader would run them."""
    shutil.copytree(photos / "test" / "frog", tmp_path / "frogs")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for number, code in enumerate(blocks(page, "python")):
        smaller = code.replace('"pocket_photos"', repr(str(photos)))
        exec(compile(smaller, f"{name_of(page)}, block {number}", "exec"), scope)


def test_pages_that_are_tested_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert page in (ROOT / "tests" / test).read_text(encoding="utf-8")


def test_the_number_beside_the_example_of_ece_is_what_it_gives() -> None:
    shown = re.search(
        r"expected_calibration_error\(probabilities, labels\)  # ([\d.]+)", text_of(DOCS / "researchers.md")
    )
    assert shown is not None
    given = calprompt.expected_calibration_error([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], [0, 1, 1])
    assert f"{given:.3f}" == shown[1]

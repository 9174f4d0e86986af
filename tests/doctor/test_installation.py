"""What is missing, too old or does not fit is named, with the command that mends it."""

import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from calprompt.doctor import installation
from calprompt.doctor.examination import Finding
from calprompt.doctor.installation import (
    DEVELOPMENT,
    EXTRAS,
    MODULES,
    check_extras,
    check_imports,
    check_installation,
    check_packages,
    requirements,
)

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def by_name(findings: Any) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions that are not the real ones."""
    changed: dict[str, str | None] = {}
    real = installation.version_of
    monkeypatch.setattr(installation, "version_of", lambda name: changed[name] if name in changed else real(name))
    return changed


def test_every_extra_says_what_it_is_for() -> None:
    assert set(PROJECT["optional-dependencies"]) == set(EXTRAS)
    assert set(DEVELOPMENT) < set(EXTRAS)


def test_requirements_match_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["open_clip_torch>=3.0", "regex", "av>=12; extra == 'video'", 'types-PyYAML; extra == "test"']
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    assert requirements() == {"open_clip_torch": "3.0", "regex": ""}
    assert requirements("video") == {"av": "12"}
    assert requirements("test") == {"types-PyYAML": ""}


def test_every_required_package_is_imported_under_its_name() -> None:
    for line in PROJECT["dependencies"]:
        name = line.partition(">=")[0]
        assert find_spec(MODULES.get(name, name)) is not None, name


def test_this_installation_is_fine() -> None:
    found = [*check_installation(), *check_packages(), *check_imports()]
    assert {each.status for each in found} == {"ok"}, found
    assert found[-1].value.startswith(f"{len(requirements())} packages in ")


def test_packages_that_are_missing_or_too_old(versions: dict[str, str | None]) -> None:
    versions |= {"torch": "2.3.1+cpu", "regex": None, "numpy": None, "pillow": "10.0"}
    found = by_name(check_packages())
    assert (found["torch"].status, found["torch"].value) == ("problem", "2.3.1+cpu, and calprompt needs 2.4 or newer")
    assert found["torch"].advice == "pip install --upgrade torch"
    assert (found["regex"].value, found["regex"].advice) == ("not installed", "Install it: pip install 'regex'")
    assert found["numpy"].advice == "Install it: pip install 'numpy>=1.26'"
    assert found["pillow"].status == "ok"


def test_extras(versions: dict[str, str | None]) -> None:
    versions |= {"av": None, "zensical": None, "resvg-py": "0.5.0"}
    found = by_name(check_extras())
    assert found["video"].status == "note"
    assert found["video"].value.startswith("not installed (av): reads the videos of UCF101")
    assert found["video"].advice == "If you want that: pip install 'calprompt[video]'"
    assert found["docs"].status == "ok"  # nothing a user would miss
    assert found["docs"].value.endswith("builds the documentation; nothing else needs it")
    assert found["pretrain"].value.startswith("resvg-py 0.5.0: ")


def test_packages_that_do_not_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        if name in ("torchvision", "open_clip"):
            raise RuntimeError("operator torchvision::nms does not exist")
        if name == "PIL":
            raise ImportError("cannot import name '_imaging'")

    monkeypatch.setattr(installation, "import_module", fail)
    found = by_name(check_imports())
    assert set(found) == {"importing torchvision", "importing PIL"}
    assert {each.status for each in found.values()} == {"problem"}
    reason = "RuntimeError: operator torchvision::nms does not exist; open_clip_torch cannot be imported either"
    assert found["importing torchvision"].value == reason
    assert "pip install --upgrade torch torchvision" in found["importing torchvision"].advice
    assert found["importing PIL"].advice == "Install it again: pip install --force-reinstall pillow"


def test_missing_package_is_one_problem_only(versions: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    versions["torch"] = None
    tried: list[str] = []
    monkeypatch.setattr(installation, "import_module", tried.append)
    assert [each.status for each in check_imports()] == ["ok"]
    assert "torch" not in tried


def test_package_run_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert next(check_installation()).status == "note"
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    found = next(check_installation())
    assert found.status == "note"
    assert "but version 0.0.1 is what is installed" in found.value

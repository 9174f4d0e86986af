"""The house: imports point one way, importing costs nothing, and the public interface is what the package says."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

import calprompt

SOURCE = Path(calprompt.__file__).parent
LAYERS = (  # a room imports from rooms above it in this list, and from its own line never
    {"errors", "parallel", "progress", "text", "outputs", "notebook", "records"},
    {"files", "hardware", "class_names", "kernel", "papers", "registry"},
    {"sealed_files", "training_config", "pocket"},
    {"clip", "data", "executors", "losses", "metrics"},
    {"calibrators", "features", "promises", "tuners"},
    {"diagnostics", "inspection", "predictor"},
    {"training"},
    {"runs"},
    {"evaluation"},
    {"doctor", "export", "extraction", "sweep"},
    {"results"},
    {"report"},
    {"classifier", "demo"},
    {"serve"},
    {"cli"},
    {"paper"},  # found by its name: nothing imports it
    {"__main__"},
)
UPWARDS = {("predictor", "evaluation")}  # Predictor.from_run, which is imported when it is called
API_PAGES = Path(__file__).parents[1] / "docs" / "api"


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a file imports, but for type checkers, and whether that waits for a call."""

    def visit(node: ast.AST, waits: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "calprompt":
                names = [f"calprompt.{alias.name}" for alias in child.names]
                yield from ((name, waits) for name in (names if child.module == "calprompt" else [str(child.module)]))
            elif isinstance(child, ast.Import):
                yield from ((alias.name, waits) for alias in child.names if alias.name.startswith("calprompt."))
            yield from visit(child, waits or isinstance(child, ast.FunctionDef))

    return visit(ast.parse(path.read_text(encoding="utf-8")), False)


def test_imports_point_one_way() -> None:
    place = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    rooms = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(place), "every room has its place in the list"
    for path in SOURCE.rglob("*.py"):
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for module, waits in imports(path) if own != "__init__" else ():
            other = room_of(module)
            if other == own or (waits and (own, other) in UPWARDS):
                continue
            assert place[other] < place[own], f"{path.relative_to(SOURCE)} imports {module}"


def test_only_the_clip_room_knows_open_clip() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.relative_to(SOURCE).parts[0] != "clip" and path.name != "prepare.py":  # names of ImageNet's classes
            assert "import open_clip" not in text, path
            assert "from open_clip" not in text, path


def documented() -> Iterator[tuple[str, Any]]:
    """The names of the pages about the programming interface."""
    for page in sorted(API_PAGES.glob("*.md")):
        for name in re.findall(r"^::: (calprompt[\w.]*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            yield name, resolve_name(name)


def test_the_package_offers_its_names_lazily() -> None:
    """No module may have the name of an export: it would take its place as soon as it is imported."""
    modules = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert not modules & set(calprompt.__all__)
    assert all(getattr(calprompt, name) is not None for name in calprompt.__all__)
    assert set(dir(calprompt)) >= set(calprompt.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = calprompt.nothing


def test_every_public_name_is_documented() -> None:
    for name in calprompt.__all__:
        thing = getattr(calprompt, name)
        if callable(thing):
            assert (thing.__doc__ or "").strip(), name


def test_docstrings_describe_every_parameter_of_the_public_interface() -> None:
    """Editors and documentation tools show them."""
    for name, thing in [*documented(), *((name, getattr(calprompt, name)) for name in calprompt.__all__)]:
        if not (inspect.isfunction(thing) or inspect.isclass(thing)) or getattr(thing, "_is_protocol", False):
            continue
        if isinstance(thing, type) and issubclass(thing, BaseException):
            continue
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = [each.name for each in inspect.signature(thing).parameters.values() if each.kind in kinds]
        public = [each for each in parameters if not each.startswith("_")]
        kinds_of = inspect.getmro(thing) if inspect.isclass(thing) else (thing,)
        doc = "\n".join(inspect.getdoc(each) or "" for each in kinds_of if each.__module__.startswith("calprompt"))
        missing = [each for each in public if not re.search(rf"^ +{each}: ", doc, re.MULTILINE)]
        assert len(public) < 2 or not missing, f"{name}: {missing}"


def test_package_parts_that_need_no_torch(tmp_path: Path) -> None:
    """Importing the package, its help and its names, data, metrics and settings; and a wrong path is told at once."""
    script = """
import json, sys
seen = {}
def note(what):
    seen[what] = sorted({"torch", "open_clip", "torchvision", "matplotlib", "onnxruntime"} & set(sys.modules))
import calprompt; note("import calprompt")
from calprompt import Dataset, RunConfig, TrainingConfig, load_dataset; note("names")
import calprompt.metrics; calprompt.expected_calibration_error([[0.8, 0.2]], [0]); note("metrics")
import calprompt.export; note("export")
from calprompt.cli.app import create_parser, main; create_parser(complete=True); note("parser")
assert main(["list"]) == 0; note("list")
assert main(["data", "list"]) == 0; note("data list")
assert main(["train", "--backbone", "pocket", "--data", "nowhere"]) == 2; note("wrong data")
assert main(["show", "nowhere"]) == 2; note("show")
print(json.dumps(seen))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert not {what: names for what, names in seen.items() if names}
    assert "there is no data at nowhere" in done.stderr

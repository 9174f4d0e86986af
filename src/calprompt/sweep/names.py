"""Names in sweep files, checked without importing what they stand for, which would take seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calprompt.data import catalogue
from calprompt.errors import SettingError
from calprompt.loss_sums import NAMED
from calprompt.registry import parse_call, registered_names, unknown


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise for a tuner, an option of it, a loss or a dataset that does not exist.

    Files of the user's own may register any name, so with `imports` only the data are checked.

    Args:
        settings: Of a run.

    >>> check_names({"tuner": "coop", "options": {"contxt": 4}})
    Traceback (most recent call last):
    calprompt.errors.UnknownNameError: unknown option of tuner 'coop': 'contxt'. Did you mean 'context'? Known: \
class_specific, context, position, words.
    """
    if "data" in settings:
        _check_data(str(settings["data"]), settings.get("root"))
    if settings.get("imports"):
        return
    tuner = settings.get("tuner", "coop")
    known = _tuner_options()
    if tuner not in known:
        raise unknown("tuner", tuner, known)
    for option in settings.get("options", {}):
        if option not in known[tuner]:
            raise unknown(f"option of tuner {tuner!r}:", str(option), known[tuner])
    if "loss" in settings:
        _check_loss(settings["loss"])


def check_calibrator(spec: Any, imports: bool = False) -> None:
    """Raise for a calibrator, or a link of a chain of them, that does not exist.

    Args:
        spec: As in `EvaluationSettings.calibrators`.
        imports: Whether files of the user's own may register others.
    """
    if not isinstance(spec, str):
        raise SettingError(f"a calibrator must be text such as temperature, got {spec!r}")
    for part in spec.split("->"):
        name, known = parse_call(part, "calibrator").name, _registered("calibrators")
        if name not in known and not imports:
            raise unknown("calibrator", name, known)


@cache
def _registered(kind: str) -> frozenset[str]:
    return frozenset(name for name, _ in registered_names(f"calprompt.{kind}", kind))


@cache
def _check_loss(text: str) -> None:
    known = _registered("losses") | set(NAMED)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return  # the run says what is wrong with it
    options = {id(node) for call in ast.walk(tree) if isinstance(call, ast.Call) for node in call.keywords}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in options and node.id not in known:
            raise unknown("loss", node.id, known)


@cache
def _check_data(data: str, root: Any) -> None:
    """Raise for a name that is no dataset of the catalogue; data that may only be missing here are left to the run."""
    path = Path(data).expanduser()
    if Path(data).name != data or path.suffix or path.exists() or catalogue.is_known(data):
        return
    if root is not None and (not Path(root).expanduser().is_dir() or (Path(root).expanduser() / data).exists()):
        return
    raise unknown("dataset", data, catalogue.available())


@cache
def _tuner_options() -> dict[str, frozenset[str]]:
    """Tuner -> its keyword options, and those of the tuners it is derived from, read from the files of the package."""
    classes: dict[str, ast.ClassDef] = {}
    spec = find_spec("calprompt.tuners")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            classes |= {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def options(node: ast.ClassDef) -> set[str]:
        found: set[str] = set()
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                found |= {argument.arg for argument in item.args.kwonlyargs}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                found |= options(classes[base.id])
        return found - _fixed(node)

    def registered(node: ast.ClassDef) -> list[str]:
        calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
        return [ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "tuners.register"]

    return {
        name: frozenset(options(node) - {"template", "seed"}) for node in classes.values() for name in registered(node)
    }


def _fixed(node: ast.ClassDef) -> set[str]:
    """Options that a tuner does not let be chosen."""
    for item in node.body:
        if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            if ast.unparse(target) == "fixed_options":
                return {str(each.value) for each in ast.walk(item.value) if isinstance(each, ast.Constant)}
    return set()

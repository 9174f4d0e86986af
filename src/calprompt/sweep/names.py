"""Names in sweep files, checked without importing what they stand for, which would take seconds."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from calprompt.errors import SettingError
from calprompt.evaluation.settings import NONE
from calprompt.registry import Call, definitions, parse_call, registered_as, unknown
from calprompt.training_config import NAMED


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise for a tuner, an option of it, a loss or a dataset that does not exist.

    Files of the user's own may register any name, so with `imports` only the data are checked.

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
    """Raise for an unknown calibrator, also in a chain, or an unknown option."""
    if not isinstance(spec, str):
        raise SettingError(f"a calibrator must be text such as temperature, got {spec!r}")
    for part in spec.split("->"):
        call, known = parse_call(part, "calibrator"), _dataclass_options("calibrators")
        if imports or call.name == NONE:
            continue
        if call.name not in known:
            raise unknown("calibrator", call.name, known)
        _check_options(call, "calibrator", known)


@cache
def _check_loss(text: str) -> None:
    """Raise for a text that is not a sum of losses, an unknown loss or an unknown option."""
    known = _dataclass_options("losses")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SettingError(f"cannot read the loss {text!r}; write a sum such as ce + 5*moments") from error
    options = {id(node) for call in ast.walk(tree) if isinstance(call, ast.Call) for node in call.keywords}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in options and node.id not in {*known, *NAMED}:
            raise unknown("loss", node.id, {*known, *NAMED})
        if isinstance(node, ast.Call):
            _check_options(parse_call(node, "loss"), "loss", known)


def _check_options(call: Call, kind: str, known: Mapping[str, frozenset[str]]) -> None:
    for option in call.options:
        if option not in known.get(call.name, {option}):
            raise unknown(f"option of {kind} {call.name!r}:", option, known[call.name])


@cache
def _dataclass_options(kind: str) -> dict[str, frozenset[str]]:
    """Registered name -> its options, of losses and calibrators, which are dataclasses, from the package's files."""
    found: dict[str, frozenset[str]] = {}
    for node in _classes(kind).values():
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        options = frozenset(
            ast.unparse(each.target)
            for each in fields
            if "ClassVar" not in ast.unparse(each.annotation)
            and not (each.value is not None and "init=False" in ast.unparse(each.value))
        )
        found |= dict.fromkeys(registered_as(node, kind), options)
    return found


@cache
def _check_data(data: str, root: Any) -> None:
    """Raise for a name that is not in the catalogue; data that may be missing only here are left to the run."""
    from calprompt.data import catalogue

    path = Path(data).expanduser()
    if Path(data).name != data or path.suffix or path.exists() or catalogue.is_known(data):
        return
    if root is not None and (not Path(root).expanduser().is_dir() or (Path(root).expanduser() / data).exists()):
        return
    raise unknown("dataset", data, catalogue.available())


@cache
def _tuner_options() -> dict[str, frozenset[str]]:
    """Tuner -> its keyword options, and those of the tuners it is derived from, read from the files of the package."""
    classes = _classes("tuners")

    def options(node: ast.ClassDef) -> set[str]:
        found: set[str] = set()
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                found |= {argument.arg for argument in item.args.kwonlyargs}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in classes:
                found |= options(classes[base.id])
        return found - _fixed(node)

    return {
        name: frozenset(options(node) - {"template", "seed"})
        for node in classes.values()
        for name in registered_as(node, "tuners")
    }


def _classes(kind: str) -> dict[str, ast.ClassDef]:
    """Classes in the files of a package, by name."""
    return {node.name: node for node in definitions(f"calprompt.{kind}") if isinstance(node, ast.ClassDef)}


def _fixed(node: ast.ClassDef) -> set[str]:
    """Options that a tuner does not let be chosen."""
    for item in node.body:
        if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
            target = item.targets[0] if isinstance(item, ast.Assign) else item.target
            if ast.unparse(target) == "fixed_options":
                return {str(each.value) for each in ast.walk(item.value) if isinstance(each, ast.Constant)}
    return set()

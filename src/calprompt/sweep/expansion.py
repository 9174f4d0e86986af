"""From a grid to its runs: axes multiply, zipped settings go side by side, some combinations are left out.

runs = |axis 1| · … · |axis n| · |zip group 1| · … · |seeds| − excluded; with `only`, those of them that it matches

Names of tuners, losses, calibrators and their options are checked in the source files of the package, without importing
them, which would take seconds.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, SettingError
from calprompt.evaluation.settings import NONE
from calprompt.files import json_digest
from calprompt.registry import Call, check_types, definitions, parse_call, registered_as, unknown
from calprompt.runs.config import (
    LATER_SETTINGS,
    RUN_SETTINGS,
    TRAINING_SETTINGS,
    RunConfig,
    check_values,
    read_recipe,
    settings_record,
)
from calprompt.training_config import NAMED, TrainingConfig

OPTION = "options."
NAMES = ("recipe", *RUN_SETTINGS, *TRAINING_SETTINGS)
NO_FIELD = re.compile(r"ClassVar|init=False")  # in a line of a dataclass


@dataclass(frozen=True)
class Cell:
    """One run of a sweep, by its settings.

    Attributes:
        settings: Settings of `RunConfig` and `TrainingConfig`, side by side.
        varied: Those that differ between the runs of the sweep.
    """

    settings: Mapping[str, Any]
    varied: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All settings, as the record of its run has them."""
        record = settings_record(self.settings)
        if record is None:
            raise SettingError(f"must be plain values, got {dict(self.settings)}", parameter="settings")
        return record

    @cached_property
    def key(self) -> str:
        """Digest of all settings: what the run is called before its images and weights are known."""
        return record_key(self.record)

    @property
    def title(self) -> str:
        """The settings that distinguish it, in a line."""
        bare = ("tuner", "loss", "data")
        words = [str(value) if name in bare else f"{name} {value}" for name, value in self.varied.items()]
        return ", ".join(words) or str(self.settings["data"])


def record_key(record: Mapping[str, Any]) -> str:
    """Digest of the settings in the record of a run, which may be of an earlier version that had fewer."""
    settings = {**LATER_SETTINGS, **record}
    for name in ("validation", "anchor"):
        if settings[name] == LATER_SETTINGS[name]:  # journals of sweeps from before have keys without it
            del settings[name]
    return json_digest(settings)[:16]


def expand(content: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> tuple[Cell, ...]:
    """All runs of a grid, the last axis going fastest and seeds last of all.

    `content` is that of a sweep file, with `settings` in place of its own; `source` is what errors call it.
    """
    recipe, zipped = content.get("recipe"), content.get("zip") or []
    choices: dict[str, Sequence[Mapping[str, Any]]] = {key: content.get(key) or [] for key in ("exclude", "only")}
    factors = _factors(content, settings, source)
    fixed = {**({"recipe": recipe} if recipe else {}), **settings}
    hidden = _hidden(zipped)
    used = {key: [False] * len(partials) for key, partials in choices.items()}
    cells: dict[str, Cell] = {}
    checked: set[tuple[str, str]] = set()
    for combination in itertools.product(*factors):
        varied = {name: value for part in combination for name, value in part.items()}
        settings = _resolve(fixed, varied, source)
        given = {**fixed, **varied}
        chosen = [_matches(partial, given, settings) for partial in choices["only"]]
        left_out = [_matches(partial, given, settings) for partial in choices["exclude"]]
        for key, hits in (("only", chosen), ("exclude", left_out)):
            used[key] = [before or hit for before, hit in zip(used[key], hits, strict=True)]
        if any(left_out) or (chosen and not any(chosen)):
            continue
        cell = Cell(settings, _shown({name: varied[name] for name in varied if name not in hidden}, settings))
        _check(cell, source, checked)
        if cell.key in cells:
            raise SettingError(
                f"{source}: two runs are the same: {cells[cell.key].title}; and {cell.title}. Leave one out"
            )
        cells[cell.key] = cell
    for key, what in (("exclude", "leaves out nothing"), ("only", "chooses nothing")):
        for place, hit in enumerate(used[key]):
            if not hit:
                raise SettingError(f"{source}: {key}[{place}] {what}: {dict(choices[key][place])}")
    if not cells:
        raise SettingError(f"{source}: exclude leaves out all runs")
    return tuple(cells.values())


def _factors(content: Mapping[str, Any], settings: Mapping[str, Any], source: str) -> list[list[dict[str, Any]]]:
    """The factors of the grid, each a list of settings that go together."""
    places: dict[Any, str] = {}

    def claim(name: Any, where: str) -> str:
        _check_name(name, source, where)
        if name in places:
            raise SettingError(f"{source}: {name} is given under {places[name]} and under {where}; remove one")
        places[name] = where
        return str(name)

    if content.get("recipe") is not None:
        places["recipe"] = "recipe"
    for name in settings:
        _check_name(name, source, "settings")
        if name != "options" and not str(name).startswith(OPTION):  # options of all runs and of some add up
            claim(name, "settings")
    factors = []
    for name, values in (content.get("axes") or {}).items():
        claim(name, "axes")
        factors.append([{name: value} for value in _values(values, source, f"axes.{name}")])
    for place, group in enumerate(content.get("zip") or []):
        where = f"zip[{place}]"
        if not isinstance(group, Mapping) or not group:
            raise SettingError(f"{source}: {where} must be names with lists of values, got {group!r}")
        columns = {}
        for name, values in group.items():
            claim(name, where)
            columns[name] = _values(values, source, f"{where}.{name}", repeated=True)
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise SettingError(f"{source}: {where} takes values side by side, and {shown}; give all as many")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if any(row in rows[:number] for number, row in enumerate(rows)):
            raise SettingError(f"{source}: {where} has the same values twice")
        factors.append(rows)
    for key in ("exclude", "only"):
        for place, partial in enumerate(content.get(key) or []):
            if not isinstance(partial, Mapping) or not partial:
                raise SettingError(f"{source}: {key}[{place}] must be settings such as tuner: coop, got {partial!r}")
            for name in partial:
                _check_name(name, source, f"{key}[{place}]")
    if content.get("seeds") is not None:
        claim("seed", "seeds")
        factors.append([{"seed": seed} for seed in content["seeds"]])
    return factors


def _check_name(name: Any, source: str, where: str) -> None:
    known = name in NAMES or (isinstance(name, str) and name.startswith(OPTION) and name != OPTION)
    if not known:
        raise unknown(f"setting in {source}, {where}:", str(name), [*NAMES, f"{OPTION}NAME"])


def _values(values: Any, source: str, where: str, repeated: bool = False) -> list[Any]:
    if not isinstance(values, list):
        raise SettingError(f"{source}: {where} must be a list of values, got {values!r}")
    if not values:
        raise SettingError(f"{source}: {where} is empty; give it a value, or leave it out")
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice and not repeated:
        raise SettingError(f"{source}: {where} has {twice[0]!r} twice")
    return values


def _resolve(fixed: Mapping[str, Any], varied: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Settings of a run: its recipe's, over them those of all runs, then its own; options are merged one by one."""
    given = {**fixed, **varied}
    recipe = dict(_recipe(given["recipe"], source)) if "recipe" in given else {}
    plain = {name: value for name, value in given.items() if name not in ("recipe", "options")}
    options = dict(recipe.get("options", {}))
    for part in (fixed, varied):
        whole = part.get("options") or {}
        if not isinstance(whole, Mapping):
            raise SettingError(f"{source}: options must be names with values, such as {{context: 4}}; got {whole!r}")
        single = {name.removeprefix(OPTION): value for name, value in part.items() if name.startswith(OPTION)}
        twice = sorted(set(whole) & set(single))
        if twice:
            raise SettingError(f"{source}: {OPTION}{twice[0]} is given by itself and in options; remove one")
        options |= {**whole, **single}
    plain = {name: value for name, value in plain.items() if not name.startswith(OPTION)}
    if "tuner" in plain and plain["tuner"] != recipe.get("tuner", plain["tuner"]):
        raise SettingError(
            f"{source}: recipe {given['recipe']} is for tuner {recipe['tuner']}, not for {plain['tuner']}"
        )
    settings = {**recipe, **plain, "options": options}
    if isinstance(settings.get("imports"), list):
        settings["imports"] = tuple(settings["imports"])
    return settings


@cache
def _recipe(name: Any, source: str) -> Mapping[str, Any]:
    try:
        return read_recipe(str(name))[1]
    except CalpromptError as error:
        raise type(error)(f"{source}: recipe: {error}") from error


def _matches(partial: Mapping[str, Any], given: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether a run has all of some settings, as the file or its recipe says them."""

    def has(name: str, wanted: Any) -> bool:
        if name == "options":
            return all(has(f"{OPTION}{option}", value) for option, value in wanted.items())
        option = settings["options"].get(name.removeprefix(OPTION)) if name.startswith(OPTION) else None
        value = option if name.startswith(OPTION) else settings.get(name, given.get(name))
        return bool(value == wanted or (isinstance(wanted, list) and value in wanted))

    return all(has(name, wanted) for name, wanted in partial.items())


def _shown(varied: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in a run's title: tuner, loss and data first, if they are varied, then the rest."""
    named = {"tuner": settings["tuner"]} if "recipe" in varied and "tuner" in settings else {}
    first = {name: varied[name] for name in ("tuner", "loss", "data") if name in varied}
    rest = {name: value for name, value in varied.items() if name != "recipe" and name not in first}
    return {**named, **first, **rest}


def _hidden(zipped: Sequence[Mapping[str, Sequence[Any]]]) -> set[str]:
    """Names left out of titles: of zipped settings, the first that distinguishes all rows is enough."""
    hidden: set[str] = set()
    for group in zipped:
        distinct = [name for name, values in group.items() if len({repr(value) for value in values}) == len(values)]
        hidden |= set(group) - set(distinct[:1]) if distinct else set()
    return hidden


def _check(cell: Cell, source: str, checked: set[tuple[str, str]]) -> None:
    """Raise for settings that no run can have; values in `checked` are known to be right, and new ones join them."""
    settings = cell.settings
    lacking = [name for name in ("backbone", "data") if name not in settings]
    if lacking:
        raise SettingError(f"{source}: {lacking[0]} is missing; put it under settings or axes")
    new = {name: value for name, value in settings.items() if (name, repr(value)) not in checked}
    try:
        for kind in (RunConfig, TrainingConfig):
            check_types("", kind.__init__, new)
        check_values(new)
        check_names(settings)
        _ = cell.key  # which looks at the settings of training
    except CalpromptError as error:
        which = f"{cell.title}: " if cell.varied else ""
        raise type(error)(f"{source}: {which}{error}") from error
    checked |= {(name, repr(value)) for name, value in new.items()}


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
    known = _options("tuners")
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
        call, known = parse_call(part, "calibrator"), _options("calibrators")
        if imports or call.name == NONE:
            continue
        if call.name not in known:
            raise unknown("calibrator", call.name, known)
        _check_options(call, "calibrator", known)


@cache
def _check_loss(text: str) -> None:
    """Raise for a text that is not a sum of losses, an unknown loss or an unknown option."""
    known = _options("losses")
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
def _options(kind: str) -> dict[str, frozenset[str]]:
    """Registered name -> its options, from the files of the package: keywords of `__init__`, or a dataclass's fields.

    Options of the classes that it is derived from are among them, those in `fixed_options` are not.
    """
    classes = {node.name: node for node in definitions(f"calprompt.{kind}") if isinstance(node, ast.ClassDef)}

    def options(node: ast.ClassDef) -> set[str]:
        is_dataclass = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
        found: set[str] = set()
        fixed: set[str] = set()
        for base in node.bases:
            found |= options(classes[base.id]) if isinstance(base, ast.Name) and base.id in classes else set()
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                found |= {argument.arg for argument in item.args.kwonlyargs}
            elif isinstance(item, ast.Assign | ast.AnnAssign):
                name = ast.unparse(item.targets[0] if isinstance(item, ast.Assign) else item.target)
                if name == "fixed_options" and item.value is not None:
                    fixed = {str(each.value) for each in ast.walk(item.value) if isinstance(each, ast.Constant)}
                elif is_dataclass and isinstance(item, ast.AnnAssign) and not NO_FIELD.search(ast.unparse(item)):
                    found.add(name)
        return found - fixed

    every = ((name, node) for node in classes.values() for name in registered_as(node, kind))
    return {name: frozenset(options(node) - {"template", "seed"}) for name, node in every}

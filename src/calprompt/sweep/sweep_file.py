"""Sweep files: a grid of runs in a few lines of YAML, whose keys are those of `KEYS`; docs/sweeps.md explains them.

Names are those of `RunConfig` and `TrainingConfig`; an option of the tuner is `options.context`. Reading a file needs
neither torch nor data nor weights. A file that extends another one has everything of that file, but for what it says
itself: what it says under `recipe`, `settings`, `axes`, `zip` or `seeds` replaces what the other file says of the same
name, wherever it says it. Values that are zipped belong together, so `zip` is replaced as a whole; all other keys are
too. A key without a value takes away what the other file has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from calprompt.errors import CalpromptError, SettingError, UnknownNameError
from calprompt.executors.protocol import WorkerResources, parse_resources
from calprompt.hardware import visible_devices
from calprompt.papers import sweep_files
from calprompt.registry import check_types, unknown
from calprompt.runs.config import Reader, Target
from calprompt.sweep.expansion import Cell, check_calibrator, expand
from calprompt.text import parse_problem, slug

KEYS: dict[str, type] = {
    **dict.fromkeys(("extends", "recipe", "device"), str),
    **dict.fromkeys(("settings", "axes", "resources"), dict),
    **dict.fromkeys(("zip", "exclude", "only", "seeds", "calibrators", "transfer", "devices"), list),
    **dict.fromkeys(("threads", "workers"), int),
    "send_back": bool,
}
WORDS = {
    bool: "true or false",
    str: "text",
    dict: "names with values",
    list: "a list",
    int: "a whole number of at least 1",
}


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, and what is done with each of them.

    Attributes:
        name: Name of the file, without its folder and ending.
        cells: The runs, in the order of the file.
        calibrators: What finished runs are measured with, besides nothing at all.
        transfer: What finished runs are evaluated on besides their own test images.
        threads: That a run computes with.
        workers: Runs at a time, on each of the devices if there are any; as many as there are cores for, if None.
        devices: GPUs of this machine that the runs are spread over.
        resources: What a worker needs of a machine, where machines are chosen by that.
        send_back: Whether workers elsewhere send runs back, instead of writing them to a shared folder.
    """

    name: str
    cells: tuple[Cell, ...]
    calibrators: tuple[str, ...] = ()
    transfer: tuple[Target, ...] = ()
    threads: int = 1
    workers: int | None = None
    devices: tuple[str, ...] = ()
    resources: WorkerResources = field(default_factory=WorkerResources)
    send_back: bool = False


class _UniqueKeys(Reader):
    """YAML in which a key given twice is an error, instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise SettingError(f"{key.value!r} is given twice, the second time in line {key.start_mark.line + 1}")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def available() -> list[str]:
    """Names of the sweep files of papers, such as paper/main."""
    return sorted(sweep_files())


def read_sweep(
    source: str | Path, *, root: str | None = None, device: str | None = None, devices: Sequence[str] | None = None
) -> Sweep:
    """Read a sweep file.

    Args:
        source: Path of a YAML file, or the name of one of the package's, such as paper/main.
        root: Folder that has the datasets, instead of what the file says.
        device: Where to compute, instead of what the file says.
        devices: GPUs to spread the runs over, instead of what the file says.

    Returns:
        The runs that the file stands for, each with all of its settings.

    Raises:
        SettingError: if the file cannot be read, or says something that makes no sense; with the file and the key.

    >>> sweep = read_sweep("paper/main")
    >>> len(sweep.cells), sweep.cells[0].settings["tuner"], sweep.calibrators
    (495, 'coop', ('temperature', 'dac'))
    """
    name, content = read_content(str(source))
    places = {"device": device, "devices": None if devices is None else list(devices)}
    given = {key: value for key, value in places.items() if value is not None}
    if len(given) > 1:
        raise SettingError("is for one device; leave it out where devices are given", parameter="device")
    if given:
        content = {key: value for key, value in content.items() if key not in places} | given
        content["settings"] = {key: each for key, each in (content.get("settings") or {}).items() if key != "device"}
    return parse_sweep(content, name, str(source), root=root)


def read_content(source: str, seen: tuple[str, ...] = ()) -> tuple[str, dict[str, Any]]:
    """Name and content of a sweep file, with that of the file that it extends."""
    name, text = _text(source)
    try:
        content = yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingError(f"{source} is not YAML: {parse_problem(error)}") from error
    except ValueError as error:
        raise SettingError(f"{source}: {error}") from error
    if not isinstance(content, dict):
        raise SettingError(f"{source} must have keys such as 'axes:' and 'settings:', got {type(content).__name__}")
    _check_keys(content, source)
    other = content.pop("extends", None)
    if other is None:
        return name, content
    other = other if other in available() else str(Path(source).expanduser().parent / Path(other).expanduser())
    if other in (*seen, source):
        raise SettingError(f"{source} extends {other}, which extends it in turn: {' → '.join((*seen, source, other))}")
    try:
        _, base = read_content(other, (*seen, source))
    except UnknownNameError as error:
        raise UnknownNameError(f"{source}: extends: {error}") from error
    return name, extend(base, content, source, other)


def parse_sweep(content: Mapping[str, Any], name: str, source: str, *, root: str | None = None) -> Sweep:
    """A sweep from what its file, and what that extends, contain."""
    _check_keys(content, source)
    settings = dict(content.get("settings") or {})
    devices = tuple(content.get("devices") or ())
    _located(source, visible_devices, list(map(str, devices)))
    said = {"device": content.get("device"), "devices": "cuda" if devices else None}
    for key, device in said.items():
        if device is not None and "device" in settings:
            raise SettingError(f"{source}: {key} is given beside another device; remove one of them")
        settings |= {} if device is None else {"device": device}
    settings |= {} if root is None else {"root": root}
    calibrators = tuple(content.get("calibrators") or ())
    for place, spec in enumerate(calibrators):
        _located(f"{source}: calibrators[{place}]", check_calibrator, spec, bool(settings.get("imports")))
    transfer = _targets(content.get("transfer") or [], source, settings.get("root"))
    threads, cells = content.get("threads", 1), expand(content, settings, source)
    usual = WorkerResources(threads, 1 if any(str(cell.record["device"]).startswith("cuda") for cell in cells) else 0)
    resources = parse_resources(content.get("resources") or {}, f"{source}: resources", usual)
    workers, send_back = content.get("workers"), content.get("send_back", False)
    return Sweep(name, cells, calibrators, transfer, threads, workers, devices, resources, send_back)


def _text(source: str) -> tuple[str, str]:
    """Name and text of a sweep file."""
    known = sweep_files()
    if source in known:
        return source.partition("/")[2], known[source].read_text(encoding="utf-8")
    if Path(source).suffix not in (".yaml", ".yml"):
        raise unknown("sweep", source, [*known, "or a path that ends in .yaml"])
    try:
        return slug(Path(source).stem), Path(source).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot read sweep {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"sweep {source} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def _check_keys(content: Mapping[str, Any], source: str) -> None:
    for key, value in content.items():
        if key not in KEYS:
            raise unknown(f"key in {source}:", str(key), KEYS)
        kind = KEYS[key]
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        wrong = wrong or (kind is int and value < 1)
        if wrong and not (value is None and kind in (dict, list)):
            raise SettingError(f"{source}: {key} must be {WORDS[kind]}, got {value!r}")
        if value is not None and key in ("seeds", "calibrators", "transfer") and not value:
            raise SettingError(f"{source}: {key} is empty; leave it out, or say at least one")
        if key in ("seeds", "calibrators") and value:
            twice = [each for place, each in enumerate(value) if each in value[:place]]
            if twice:
                raise SettingError(f"{source}: {key} has {twice[0]!r} twice")


def _targets(entries: list[Any], source: str, root: str | None) -> tuple[Target, ...]:
    """The transfer targets, each with a name that is known before its data are loaded."""
    found: dict[str, Target] = {}
    known = list(Target.__dataclass_fields__)
    for place, entry in enumerate(entries):
        where = f"{source}: transfer[{place}]"
        given = {"data": entry} if isinstance(entry, str) else entry
        if not isinstance(given, dict) or "data" not in given:
            raise SettingError(f"{where} must be data, or settings with data among them; got {entry!r}")
        for key in given:
            if key not in known:
                raise unknown(f"setting in {where}:", str(key), known)
        _located(where, check_types, "setting", Target.__init__, given)
        path = Path(str(given["data"]))
        usual = slug(path.stem if path.suffix else path.name)
        target = _located(where, lambda given=given, usual=usual: Target(**{"root": root, "name": usual, **given}))
        if slug(str(target.name)) in found:
            raise SettingError(f"{where} has the name {target.name} of another; give it one of its own with name")
        found[slug(str(target.name))] = target
    return tuple(found.values())


def _located(where: str, check: Any, *args: Any) -> Any:
    """The result of a check, whose error gets the place in the file."""
    try:
        return check(*args)
    except CalpromptError as error:
        raise type(error)(f"{where}: {error}") from error


BY_NAME = ("settings", "axes")  # keys whose names go over those of the other file one by one


def extend(base: Mapping[str, Any], changes: Mapping[str, Any], source: str, origin: str) -> dict[str, Any]:
    """The content of a file merged with the file it extends.

    >>> extend({"axes": {"loss": ["ce"], "data": ["a", "b"]}, "seeds": [1]}, {"settings": {"data": "b"}}, "it", "other")
    {'axes': {'loss': ['ce']}, 'seeds': [1], 'settings': {'data': 'b'}}
    """
    said = _names(changes)
    merged = {key: value for key, value in base.items() if key not in changes or key in BY_NAME}
    if "zip" in merged:
        for group in merged["zip"] or []:
            zipped = sorted(said & set(group)) if isinstance(group, Mapping) else []
            if zipped:
                others = ", ".join(name for name in group if name != zipped[0])
                raise SettingError(
                    f"{source}: {zipped[0]} is zipped with {others} in {origin}, where values belong together; say zip "
                    "as a whole here, or choose some of its rows with only"
                )
    for key in BY_NAME:
        if merged.get(key):
            own = changes.get(key) or {}  # which keep their places
            merged[key] = {name: value for name, value in merged[key].items() if name not in said or name in own}
    if "recipe" in said:
        merged.pop("recipe", None)
    if "seed" in said:
        merged.pop("seeds", None)
    for key, value in changes.items():
        if key in BY_NAME and value and merged.get(key):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    return {key: value for key, value in merged.items() if not (key in BY_NAME and value == {})}


def _names(content: Mapping[str, Any]) -> set[Any]:
    """Names of the settings that a file sets."""
    found = {name for key in BY_NAME for name in content.get(key) or {}}
    for group in content.get("zip") or []:
        found |= set(group) if isinstance(group, Mapping) else set()
    return found | ({"recipe"} if "recipe" in content else set()) | ({"seed"} if "seeds" in content else set())

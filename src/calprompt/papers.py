"""Papers whose tables, figures and sweeps the commands know. Each is a package that nothing imports by name:

    sweeps/*.yaml            grids of runs: sweeps/main.yaml of the package calprompt.paper is the sweep paper/main
    tables.TABLES            name -> definition: `sweeps`, whose runs it is of, and `make(source, options)` -> tables
    figures.FIGURES          name -> `calprompt.report.figures.FigureInfo`

The package's own paper is built in. An installed distribution adds another with an entry point of the group
`calprompt.papers`: `mine = my_package.my_paper`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

GROUP = "calprompt.papers"
BUILT_IN = {"paper": "calprompt.paper"}


@cache
def papers() -> dict[str, str]:
    """Name -> package of every paper; its sweeps are called NAME/SWEEP."""
    return BUILT_IN | {point.name: point.value for point in entry_points(group=GROUP) if point.name not in BUILT_IN}


def sweep_files() -> dict[str, Traversable]:
    """The sweep files of all papers by their name, such as paper/main."""
    found = {}
    for name, package in papers().items():
        folder = files(package) / "sweeps"
        for file in folder.iterdir() if folder.is_dir() else ():
            if file.name.endswith(".yaml"):
                found[f"{name}/{file.name.removesuffix('.yaml')}"] = file
    return found


def registered(module: str, names: str) -> dict[str, Any]:
    """The contents of a registry in all papers, such as tables.TABLES; of papers that are not built in, by
    NAME/THING."""
    found: dict[str, Any] = {}
    for paper, package in papers().items():
        things = getattr(import_module(f"{package}.{module}"), names)
        found |= things if paper in BUILT_IN else {f"{paper}/{name}": thing for name, thing in things.items()}
    return found

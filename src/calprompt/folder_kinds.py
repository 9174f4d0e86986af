"""What a folder holds: a fitted model, an exported one, a run, or data; told by the file that each of them has."""

from __future__ import annotations

from pathlib import Path

from calprompt.errors import NotFoundError
from calprompt.text import shorten

RUN, MODEL, EXPORT, DATA = "run", "model", "export", "data"
RECORDS = {RUN: "run.json", EXPORT: "model.json", MODEL: "config.json"}  # in the order they are looked for
WORDS = {RUN: "a run", EXPORT: "an exported model", MODEL: "a model", DATA: "data"}


def folder_kind(folder: str | Path) -> str | None:
    """The kind of a folder, whole or damaged: "run", "export", "model", "data" for any other; None if there is none."""
    folder = Path(folder).expanduser()
    found = (kind for kind, name in RECORDS.items() if (folder / name).is_file())
    return next(found, DATA if folder.is_dir() else None)


def require_kind(folder: str | Path, *kinds: str) -> str:
    """The kind of a folder that has to be one of some kinds."""
    kind = folder_kind(folder)
    if kind in kinds:
        return str(kind)
    folder = Path(folder).expanduser()
    words = [f"of {WORDS[each]}" for each in kinds]
    expected = " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if kind is None:
        problem = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise NotFoundError(f"{problem}; expected the folder {expected}")
    if kind != DATA:
        raise NotFoundError(f"{folder} is the folder of {WORDS[kind]}; expected the folder {expected}")
    names = " or ".join(RECORDS[each] for each in kinds)
    inside = sorted(path.parent.name for path in folder.glob(f"*/{RECORDS[RUN]}")) if RUN in kinds else []
    hint = f"; there are runs in it: {shorten(inside)}" if inside else ""
    raise NotFoundError(f"{folder} is not the folder {expected}, it has no {names}{hint}")

"""Which models and versions there are, which version of each answers, and what all processes of a server share.

    MODELS/NAME/VERSION/       a fitted model, an exported one or a run; it is not changed once it is there
    MODELS/NAME/serving.json   the version that answers, the one that did before, and the one in its shadow; without it,
                               the newest version answers: 10 is newer than 9, and 2026-11 newer than 2026-02

A switch has two steps, so that all processes answer with one version: each loads the next version (`propose`), and when
all have it, it becomes the active one (`commit`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, SettingError
from calprompt.files import EXPORT, MODEL, RUN, folder_kind, require_kind, write_json
from calprompt.serve.decoder import View
from calprompt.serve.feedback import FeedbackBook
from calprompt.serve.feedback_store import KeptImages
from calprompt.serve.loading import load_served
from calprompt.serve.problems import ProblemError
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings
from calprompt.text import os_problem, shorten

PLAN = "serving.json"
ONLY = "1"  # version of a model that has no versions
NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,99}", re.ASCII)
MOST_MODELS = 32


@dataclass(frozen=True)
class Plan:
    """Which versions of a model are in use."""

    active: str  # answers
    previous: str | None = None  # answered before it; None if none did
    shadow: str | None = None  # answers beside it, unseen by clients; None if none does
    next: str | None = None  # is being loaded, to answer from then on; None if none is

    @property
    def needed(self) -> tuple[str, ...]:
        """Versions that have to be in memory."""
        return tuple(dict.fromkeys(each for each in (self.active, self.shadow, self.next) if each is not None))


class Models:
    """The models of a server.

    Args:
        place: Folder of a model or of models, or a model in memory.
        options: Further arguments of `load_served`.

    Attributes:
        names: Of the models; the first one answers where none is named.
        is_single: Whether it is one model without versions.

    Raises:
        NotFoundError: if there is no model.
    """

    def __init__(self, place: str | Path | ServedModel, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._ahead: dict[tuple[str, str], ServedModel] = {}
        self._given = place if isinstance(place, ServedModel) else None
        self.names: tuple[str, ...]
        self._folders: dict[str, Path] = {}
        if isinstance(place, ServedModel):
            self.is_single, self.names = True, (place.name,)
            return
        folder = Path(place).expanduser()
        self.is_single = _is_model(folder)
        if self.is_single:
            self._folders = {folder.resolve().name: folder}
        elif folder.is_dir():
            self._folders = {each.name: each for each in _folders(folder) if _is_model(each) or _versions(each)}
        if not self._folders:
            require_kind(folder, MODEL, EXPORT, RUN)
        if len(self._folders) > MOST_MODELS:
            raise SettingError(
                f"{folder} has {len(self._folders)} models, and the limit is {MOST_MODELS}; give the folder of one"
            )
        self.names = tuple(self._folders)

    def versions(self, name: str) -> tuple[str, ...]:
        """Versions of a model that are there now, the newest first."""
        if self._given is not None:
            return (self._given.version,)
        return (ONLY,) if _is_model(self._folders[name]) else _versions(self._folders[name])

    def has_versions(self, name: str) -> bool:
        """Whether there can be other versions beside the one that answers."""
        return self._plan_file(name) is not None

    def folder(self, name: str, version: str) -> Path:
        """Where a version is."""
        return self._folders[name] if _is_model(self._folders[name]) else self._folders[name] / version

    def load(self, name: str, version: str) -> ServedModel:
        """A version of a model."""
        found = self._given or self._ahead.pop((name, version), None)
        if found is not None:
            return found
        if version not in self.versions(name):
            known = shorten(self.versions(name)) or "none"
            raise NotFoundError(f"{name} has no version {version!r}; there are: {known}")
        return replace(load_served(self.folder(name, version), **self._options), name=name, version=version)

    def load_active(self) -> list[ServedModel]:
        """All models that are to answer, loaded ahead: what is wrong with one is said before a port is opened."""
        found = [self.load(name, self.plan(name).active) for name in self.names]
        self._ahead = {(each.name, each.version): each for each in found}
        return found

    def plan(self, name: str) -> Plan:
        """Which versions of a model are in use, as it is on disk."""
        versions, path = self.versions(name), self._plan_file(name)
        if path is None or not path.is_file():
            return Plan(versions[0])
        try:
            found = Plan(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{path} cannot be read: {error}; remove it to begin with the newest") from error
        missing = sorted({each for each in (found.active, found.shadow) if each is not None} - set(versions))
        if missing:
            raise NotFoundError(
                f"{path} names the version {missing[0]!r}, which is not there; restore it, or remove the file"
            )
        return found

    def write_plan(self, name: str, plan: Plan) -> None:
        """Keep which versions are in use, for the next start."""
        path = self._plan_file(name)
        if path is None:
            raise SettingError(f"{name} has no versions; serve a folder MODELS with MODELS/{name}/VERSION")
        try:
            write_json(path, asdict(replace(plan, next=None)))
        except OSError as error:
            raise CalpromptError(f"{path} cannot be written: {os_problem(error)}; nothing was switched") from error

    def _plan_file(self, name: str) -> Path | None:
        folder = self._folders.get(name)
        return None if folder is None or _is_model(folder) else folder / PLAN


def _is_model(folder: Path) -> bool:
    return folder_kind(folder) in (MODEL, EXPORT, RUN)


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if NAME.fullmatch(each.name) and each.is_dir())


def _versions(folder: Path) -> tuple[str, ...]:
    """Versions in a folder, the newest first."""
    found = [each.name for each in _folders(folder) if _is_model(each)]
    return tuple(sorted(found, key=_age, reverse=True))


def _age(version: str) -> list[tuple[int, int, str]]:
    """What versions are sorted by: numbers as numbers.

    >>> sorted(["v10", "v9", "v9.1"], key=_age)
    ['v9', 'v9.1', 'v10']
    """
    parts = re.findall(r"\d+|\D+", version)
    return [(0, int(each), "") if each.isdigit() else (1, 0, each) for each in parts]


ABSENT = 5.0  # seconds without a word, after which a process is waited for no longer
ABANDONED = 1200.0  # seconds after which a change does not stand in the way of others: its process was lost


class Keeper:
    """Owns the feedback files and the plans; safe to use from several threads."""

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self._models, self._settings = models, settings
        self._plans = {name: models.plan(name) for name in models.names}
        self._books: dict[tuple[str, str], FeedbackBook] = {}
        self._kept: dict[str, KeptImages] = {}
        self._processes: dict[str, tuple[float, Mapping[str, Sequence[str]]]] = {}
        self._failures: dict[str, str] = {}
        self._proposed: dict[str, float] = {}  # when
        self._lock = threading.RLock()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method by its name, as other processes do."""
        return getattr(self, method)(*args, **options)

    def open(self, model: ServedModel) -> dict[str, tuple[bytes, View]]:
        """Begin to take feedback on a version; returns secret and view of all versions whose feedback is taken."""
        name, version = model.name, model.version
        with self._lock:
            if (name, version) not in self._books:
                settings, watched = self._settings, model.image_watch is not None or self._models.is_single
                keep = self._place(settings.keep, name)
                if keep is not None and name not in self._kept:
                    self._kept[name] = KeptImages(keep, settings.keep_bytes)
                self._books[name, version] = FeedbackBook(
                    model,
                    false_alarms=settings.false_alarms,
                    path=self._place(settings.feedback, name, f"{version}.db"),
                    keep=self._kept.get(name),
                    image_path=self._place(settings.watch if watched else None, name, f"{version}.json"),
                )
            return {each: (book.secret, book.view) for (of, each), book in self._books.items() if of == name}

    def feedback(self, name: str, version: str, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the `FeedbackBook` of a version."""
        return getattr(self._books[name, version], method)(*args, **options)

    def check_in(
        self, process: str, loaded: Mapping[str, Sequence[str]], failures: Mapping[str, str]
    ) -> dict[str, Plan]:
        """Say which versions a process has, the active one first, and which it cannot have; returns what it should."""
        with self._lock:
            self._processes[process] = (time.monotonic(), loaded)
            self._failures |= {name: why for name, why in failures.items() if self._plans[name].next is not None}
            return dict(self._plans)

    def propose(self, name: str, plan: Plan, version: str) -> Plan:
        """Have all processes load a version, if the plan is as it was seen; returns the new one."""
        with self._lock:
            now = self._plans[name]
            if now.next is not None and time.monotonic() < self._proposed[name] + ABANDONED:
                raise ProblemError(409, f"version {now.next} of {name} is being loaded; try again when it is")
            if now != plan:
                raise ProblemError(409, f"the versions of {name} were changed meanwhile; look at them and try again")
            self._failures.pop(name, None)
            self._proposed[name] = time.monotonic()
            self._plans[name] = replace(now, next=version)
            return self._plans[name]

    def is_loaded(self, name: str, version: str, *, active: bool = False) -> bool:
        """Whether all processes have a version, or answer with it; raises if one cannot have it."""
        with self._lock:
            if name in self._failures:
                raise ProblemError(409, self._failures[name])
            heard = [loaded for when, loaded in self._processes.values() if time.monotonic() < when + ABSENT]
            return all(version in loaded.get(name, ())[: 1 if active else None] for loaded in heard)

    def commit(self, name: str, proposed: Plan, plan: Plan) -> None:
        """Have all processes follow a plan in the place of the proposed one from now on, and after a restart."""
        with self._lock:
            if self._plans[name] != proposed:
                raise ProblemError(409, f"the versions of {name} were changed meanwhile; look at them and try again")
            self._models.write_plan(name, plan)
            self._plans[name] = replace(plan, next=None)
            self._failures.pop(name, None)

    def cancel(self, name: str, proposed: Plan) -> None:
        """Forget a version that was proposed."""
        with self._lock:
            if self._plans[name] == proposed:
                self._plans[name] = replace(proposed, next=None)
                self._failures.pop(name, None)

    def save(self) -> None:
        """Write what is not written yet."""
        for book in list(self._books.values()):
            book.save()

    def close(self) -> None:
        """Write what is not written yet, and let go of the files."""
        with self._lock:
            for book in self._books.values():
                book.close()

    def _place(self, given: str | None, name: str, *file: str) -> Path | None:
        """Where something of a model is kept: in a folder of its name, unless there is one model without versions."""
        if given is None:
            return None
        place = Path(given).expanduser()
        return place if self._models.is_single else place.joinpath(name, *file)

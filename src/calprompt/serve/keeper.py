"""What all processes of a server share: the feedback on each version of each model, and which version answers.

One process owns it: the only one, the one that started the workers, or an actor of Ray. All others ask it.

    worker ── check_in, every half second ──┐
    worker ── feedback, undo, watches ──────┼── Keeper ──┬── FEEDBACK/NAME/VERSION.db, WATCH/NAME/VERSION.json
    worker ── …                             ┘            ├── KEEP/NAME/CLASS/…
                                                         └── MODELS/NAME/serving.json

A switch has two steps, so that all processes answer with one version: each loads the next version (`propose`), and when
all have it, it becomes the active one (`commit`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calprompt.errors import CalpromptError
from calprompt.promises import DecisionRule
from calprompt.serve.decoder import View
from calprompt.serve.feedback import FeedbackBook
from calprompt.serve.kept_images import KeptImages
from calprompt.serve.models import Models, Plan
from calprompt.serve.served_model import ServedModel
from calprompt.serve.settings import ServeSettings

ABSENT = 5.0  # seconds without a word, after which a process is waited for no longer
ABANDONED = 1200.0  # seconds after which a change does not stand in the way of others: its process was lost


class SwitchError(CalpromptError):
    """Another switch is under way, or a process cannot load the version."""


@dataclass(frozen=True)
class ModelFacts:
    """What feedback on a model has to know of it; travels between processes, as the model does not."""

    name: str
    version: str
    fingerprint: str
    rule: DecisionRule
    class_names: tuple[str, ...]
    image_watch: dict[str, Any] | None
    not_watched: str
    view: View

    @classmethod
    def of(cls, model: ServedModel) -> ModelFacts:
        facts = (model.fingerprint, model.rule, model.labels, model.image_watch, model.not_watched, model.view)
        return cls(model.name, model.version, *facts)


class Keeper:
    """Owns the feedback files and the plans; safe to use from several threads."""

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self._models, self._settings = models, settings
        self._plans = {name: models.plan(name) for name in models.names}
        self._books: dict[tuple[str, str], FeedbackBook] = {}
        self._views: dict[tuple[str, str], View] = {}
        self._kept: dict[str, KeptImages] = {}
        self._processes: dict[str, tuple[float, Mapping[str, Sequence[str]]]] = {}
        self._failures: dict[str, str] = {}
        self._proposed: dict[str, float] = {}  # when
        self._lock = threading.RLock()

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method by its name, as other processes do."""
        return getattr(self, method)(*args, **options)

    def open(self, facts: ModelFacts) -> dict[str, tuple[bytes, View]]:
        """Begin to take feedback on a version; returns secret and view of all versions whose feedback is taken."""
        name, version = facts.name, facts.version
        with self._lock:
            if (name, version) not in self._books:
                settings, watched = self._settings, facts.image_watch is not None or self._models.is_single
                keep = self._place(settings.keep, name)
                if keep is not None and name not in self._kept:
                    self._kept[name] = KeptImages(keep, settings.keep_bytes)
                self._books[name, version] = FeedbackBook(
                    facts.rule,
                    facts.fingerprint,
                    class_names=facts.class_names,
                    false_alarms=settings.false_alarms,
                    path=self._place(settings.feedback, name, f"{version}.db"),
                    keep=self._kept.get(name),
                    image_watch=facts.image_watch,
                    not_watched=facts.not_watched,
                    image_path=self._place(settings.watch if watched else None, name, f"{version}.json"),
                )
                self._views[name, version] = facts.view
            return {
                each: (self._books[name, each].secret, view) for (of, each), view in self._views.items() if of == name
            }

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
                raise SwitchError(f"version {now.next} of {name} is being loaded; try again when it is")
            if now != plan:
                raise SwitchError(f"the versions of {name} were changed meanwhile; look at them and try again")
            self._failures.pop(name, None)
            self._proposed[name] = time.monotonic()
            self._plans[name] = replace(now, next=version)
            return self._plans[name]

    def is_loaded(self, name: str, version: str, *, active: bool = False) -> bool:
        """Whether all processes have a version, or answer with it; raises if one cannot have it."""
        with self._lock:
            if name in self._failures:
                raise SwitchError(self._failures[name])
            heard = [loaded for when, loaded in self._processes.values() if time.monotonic() < when + ABSENT]
            return all(version in loaded.get(name, ())[: 1 if active else None] for loaded in heard)

    def commit(self, name: str, proposed: Plan, plan: Plan) -> None:
        """Have all processes follow a plan in the place of the proposed one from now on, and after a restart."""
        with self._lock:
            if self._plans[name] != proposed:
                raise SwitchError(f"the versions of {name} were changed meanwhile; look at them and try again")
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

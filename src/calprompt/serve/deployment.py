"""A name that clients ask, and the versions of a model behind it.

    /v1/predict, /models/NAME/v1/predict ── Deployment ──┬── active version ── answer
                                                         └── shadow version ── compared, never shown

A version is loaded beside those in use, tried on a sample, and becomes the active one between two requests: those
under way keep the version they began with. The one before stays in memory, so that going back takes no time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import SettingError
from calprompt.serve.decoder import View
from calprompt.serve.engine import Engine
from calprompt.serve.feedback import Receipt, read_receipt
from calprompt.serve.models import Plan
from calprompt.serve.served_model import ServedModel

SAMPLE = 32  # images answered last, in memory, that a new version is tried on
SUM_TOLERANCE = 1e-3  # of probabilities


class Deployment:
    """The versions of a model that this process has in memory."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self.loaded: dict[str, ServedModel] = {}
        self.books: dict[str, tuple[bytes, View]] = {}  # of each version that answered, also of those that are gone
        self.recent: deque[NDArray[np.uint8]] = deque(maxlen=SAMPLE)

    @property
    def active(self) -> ServedModel:
        return self.loaded[self.plan.active]

    @property
    def shadow(self) -> ServedModel | None:
        """The version that answers beside it."""
        return None if self.plan.shadow is None else self.loaded.get(self.plan.shadow)

    def follow(self, plan: Plan) -> list[ServedModel]:
        """Use the versions of a plan from now on, all of which are in memory; returns those needed no longer."""
        if plan.active != self.plan.active:
            self.recent.clear()
        self.plan = plan
        kept = {*plan.needed, plan.previous}
        gone = [version for version in self.loaded if version not in kept]
        return [self.loaded.pop(version) for version in gone]

    def read(self, receipt: str) -> tuple[Receipt, str, View]:
        """A receipt of an answer, the version that gave it, and its view."""
        for version, (secret, view) in self.books.items():
            found = read_receipt(receipt, secret)
            if found is not None:
                return found, version, view
        raise SettingError(
            "id belongs to no answer of this server, or the server was restarted since; send the image again"
        )


async def try_on_sample(engine: Engine, new: ServedModel, old: ServedModel, recent: Sequence[Any]) -> dict[str, int]:
    """How many of the images answered last a new version names the same class on; raises if its answers are none."""
    size = new.view.size
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    images = list(recent) if new.view == old.view else []
    found = await asyncio.gather(*(engine.batcher.submit(new, each) for each in [noise, *images]))
    for _, probabilities in found:
        shown = np.asarray(probabilities)
        if shown.shape != (len(new.labels),) or not abs(shown.sum() - 1) < SUM_TOLERANCE:
            raise SettingError(
                f"version {new.version} of {new.name} does not return probabilities of its classes, so it is not used"
            )
    before = await asyncio.gather(*(engine.batcher.submit(old, each) for each in images))
    pairs = zip(found[1:], before, strict=True)
    same = sum(new.labels[int(a[1].argmax())] == old.labels[int(b[1].argmax())] for a, b in pairs)
    return {"images": len(images), "same_class": same}

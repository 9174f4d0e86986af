"""Small fits for tests: a tiny CLIP with random weights, and pictures of noise."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import samples
from calprompt import Classifier
from calprompt.features.store import FeatureStore
from calprompt.runs.resources import Resources

SHARED = Resources(store=FeatureStore())
QUICK: dict[str, Any] = {"tuner": "kgcoop", "epochs": 1, "folds": 2, "batch_size": 16, "verbose": False}


def classifier(**settings: Any) -> Classifier:
    """A classifier on the tiny CLIP that fits in a second."""
    return Classifier(**{"backbone": str(samples.backbone()), **QUICK, **settings})


@cache
def fitted() -> Classifier:
    """On pictures of six classes, ten each, five of them held out."""
    return classifier(held_out=0.5).fit(samples.pictures(), resources=SHARED)


@cache
def saved() -> Path:
    """The folder of `fitted`."""
    return fitted().save(samples.shared() / "fitted-model")


@cache
def picture_paths() -> list[str]:
    return sorted(map(str, samples.pictures().rglob("*.png")))

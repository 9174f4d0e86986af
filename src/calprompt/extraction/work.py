"""What a worker does with a portion: computes the features that the store lacks, exactly as a run would.

The process keeps its backbone and dataset for the portions that follow. A worker that does not see the store uses the
one of its own machine, and sends all features of the portion back with their keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from calprompt.errors import CalpromptError, DataError
from calprompt.executors.protocol import FAILED, FINISHED, Outcome
from calprompt.executors.shared_folder import is_shared
from calprompt.extraction.plan import Portion, names_digest
from calprompt.runs.resources import Resources
from calprompt.text import os_problem

if TYPE_CHECKING:
    from torch import Tensor

    from calprompt.clip.backbone import Backbone
    from calprompt.data.images import Images
    from calprompt.features.store import Space

_loaded: dict[str, Resources] = {}  # of the backbone that this process is at
_checked: list[Images] = []  # of the split that this process is at


@dataclass(frozen=True)
class SentFeatures:
    """Features on their way to the store.

    Attributes:
        about: Everything that they depend on besides the image and its view.
        name: Of the backbone.
        keys: Of the images and views.
        rows: Features [keys, D], as a safetensors file.
    """

    about: dict[str, Any]
    name: str
    keys: list[bytes]
    rows: bytes


@dataclass(frozen=True)
class PortionReport:
    """What was done with a portion.

    Attributes:
        found: Features that were in the store.
        computed: Features that were computed.
        unreadable: Names of images that cannot be read, and why.
        sent: Features for a store that the worker does not see.
    """

    found: int
    computed: int
    unreadable: dict[str, str]
    sent: SentFeatures | None = None


def work(portion: Portion) -> Outcome[Portion]:
    """Do a portion; what goes wrong is its outcome."""
    start = time.perf_counter()
    try:
        report = _extract(portion)
    except CalpromptError as error:
        return Outcome(portion, FAILED, reason=str(error))
    except OSError as error:
        return Outcome(portion, FAILED, reason=os_problem(error))
    seconds = round(time.perf_counter() - start, 3)
    return Outcome(portion, FINISHED, seconds=seconds, reused=not report.computed, result=report)


def _extract(portion: Portion) -> PortionReport:
    from calprompt.data.unreadable import UnreadableImages
    from calprompt.features.encoding import description
    from calprompt.features.extraction import Extraction
    from calprompt.progress import FeatureProgress, silent

    sends = portion.send_back or bool(portion.marker and not is_shared(portion.marker))
    resources = _resources(portion, None if sends else portion.store)
    backbone, images = _backbone(portion, resources), _images(portion, resources)
    assert resources.store is not None
    about = description(backbone, images)
    space = resources.store.space(about, backbone.name)
    record = RecordedSpace(space) if sends else None
    unreadable = UnreadableImages()
    meter = FeatureProgress("features", portion.features, silent, stored=True)
    passes = [range(1)] + ([range(1, portion.views + 1)] if portion.views and images.augmented else [])
    for views in passes:
        Extraction(backbone, images, views, cast("Space", record or space), unreadable).run(meter)
    if not sends and not resources.store.writable:
        raise CalpromptError(f"cannot store features in {resources.store.folder}; is it full, or only to be read?")
    sent = None if record is None else record.packed(about, backbone.name)
    return PortionReport(meter.found, meter.computed, dict(unreadable.reasons), sent)


def _resources(portion: Portion, store: str | None) -> Resources:
    from calprompt.features.store import FeatureStore

    key = repr((portion.settings, portion.backbone, store))
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = Resources(store=FeatureStore(store))
    return _loaded[key]


def _backbone(portion: Portion, resources: Resources) -> Backbone:
    settings = portion.settings
    backbone = resources.backbone(
        portion.backbone, config=settings.backbone_config, device=settings.device, dtype=settings.dtype
    )
    return backbone.view(autocast=settings.autocast, crop=settings.crop)


def _images(portion: Portion, resources: Resources) -> Images:
    settings = portion.settings
    dataset = resources.dataset(settings.data, root=settings.root, classes=settings.classes, upright=settings.exif)
    images = dataset.splits[portion.split].images
    if not any(images is each for each in _checked) and names_digest(images) != portion.names:
        raise DataError(f"{settings.data} has other images here than where the work was planned")
    _checked[:] = [images]  # they stay loaded
    images.check(_backbone(portion, resources))
    return images.take(range(portion.start, portion.stop))


@dataclass
class RecordedSpace:
    """A space of the store that remembers all features that go in or out.

    Attributes:
        space: The space.
        rows: Key -> feature.
    """

    space: Space
    rows: dict[bytes, Tensor] = field(default_factory=dict)

    def find(self, keys: Sequence[bytes]) -> tuple[list[int], Tensor]:
        """See `Space.find`."""
        found, values = self.space.find(keys)
        self.rows |= {keys[place]: row for place, row in zip(found, values, strict=True)}
        return found, values

    def add(self, keys: Sequence[bytes], rows: Tensor) -> None:
        """See `Space.add`."""
        self.rows |= dict(zip(keys, rows, strict=True))
        self.space.add(keys, rows)

    def flush(self) -> None:
        """See `Space.flush`."""
        self.space.flush()

    def note_use(self, found: int, computed: int, seconds: float) -> None:
        """See `Space.note_use`."""
        self.space.note_use(found, computed, seconds)

    def packed(self, about: dict[str, Any], name: str) -> SentFeatures | None:
        """All that was recorded; None if that is nothing."""
        import torch
        from safetensors.torch import save

        if not self.rows:
            return None
        rows = torch.stack(list(self.rows.values())).contiguous()
        return SentFeatures(about, name, list(self.rows), bytes(save({"features": rows})))

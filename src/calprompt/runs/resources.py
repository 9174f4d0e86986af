"""Resources that runs share: loaded backbones, datasets, the bytes of their images, and image features.

    resources = Resources(store=FeatureStore())
    for config in configs:
        run(config, "runs", resources=resources)      the second pays only for its own training

What it holds is taken as it was when it was first asked for; image files that change on disk are noticed all the same,
because features are kept by the content of the images.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calprompt.clip.identity import BackboneIdentity, identify_backbone
from calprompt.data.checks import UnreadableImages
from calprompt.data.dataset import Dataset
from calprompt.data.images import ImageFiles, ImageMemory, Images
from calprompt.data.load import load_dataset
from calprompt.errors import ImageError
from calprompt.files import json_digest
from calprompt.progress import Progress, silent

if TYPE_CHECKING:
    from torch import Tensor

    from calprompt.clip.backbone import Backbone
    from calprompt.features.store import FeatureStore

FEATURE_BUDGET = 1 << 30  # bytes of features kept in memory


class Resources:
    """Loads everything once and keeps it for later runs; use one from one thread.

    Args:
        store: Where image features are kept on disk for other processes; `None`: nowhere.
        memory: Keeps the bytes of image files, so that each is opened once.
    """

    def __init__(self, *, store: FeatureStore | None = None, memory: ImageMemory | None = None) -> None:
        self.store = store
        self.memory = ImageMemory() if memory is None else memory
        self._backbones: dict[tuple[Any, ...], Backbone] = {}
        self._datasets: dict[tuple[Any, ...], Dataset] = {}
        self._features: OrderedDict[str, Tensor] = OrderedDict()

    def backbone(
        self, spec: str, *, config: str | None = None, device: str = "cpu", dtype: str = "float32"
    ) -> Backbone:
        """A backbone, loaded if it was not yet; the arguments are those of `load_backbone`."""
        key = (spec, config, device, dtype)
        if key not in self._backbones:
            import torch

            from calprompt.clip.load import load_backbone

            self._backbones[key] = load_backbone(spec, config=config, device=device, dtype=getattr(torch, dtype))
        return self._backbones[key]

    def identity(self, spec: str, *, config: str | None = None, dtype: str = "float32") -> BackboneIdentity:
        """The identity of a backbone, which is loaded only if it is new on this machine or its files have changed."""
        for (*key, _, kind), loaded in self._backbones.items():
            if (*key, kind) == (spec, config, dtype):
                from calprompt.clip.load import identity_of

                return identity_of(loaded)
        known = identify_backbone(spec, config=config, dtype=dtype)
        if known is not None:
            return known
        from calprompt.clip.load import identity_of

        return identity_of(self.backbone(spec, config=config, dtype=dtype))

    def dataset(self, data: str | Path, **options: Any) -> Dataset:
        """A dataset whose images are opened once; the options are those of `load_dataset`."""
        key = (str(data), *sorted(options.items()))
        if key not in self._datasets:
            self._datasets[key] = load_dataset(data, **options).with_files(memory=self.memory)
        return self._datasets[key]

    def features(
        self,
        backbone: Backbone,
        images: Images,
        views: int = 0,
        *,
        unreadable: UnreadableImages,
        progress: Progress = silent,
        what: str = "features",
    ) -> Tensor:
        """Frozen image features [V, n, D]; the arguments are those of `frozen_features`."""
        from calprompt.features.frozen import description, frozen_features

        key = None
        if isinstance(images, ImageFiles):
            try:
                digests = [images.digest(index) for index in range(len(images))]
                payload = [description(backbone, images), views, digests]
                key = json_digest(payload)
            except ImageError:
                key = None  # reported with all others below
        if key is not None and key in self._features:
            self._features.move_to_end(key)
            return self._features[key]
        found = frozen_features(
            backbone, images, views, unreadable=unreadable, store=self.store, progress=progress, what=what
        )
        if key is not None and not unreadable.reasons:
            self._features[key] = found
            while sum(each.nbytes for each in self._features.values()) > FEATURE_BUDGET and len(self._features) > 1:
                self._features.popitem(last=False)
        return found


_of_group: dict[str, Resources] = {}


def group_resources(key: str, store: Callable[[], FeatureStore | None]) -> Resources:
    """The resources that tasks of a group share in a worker; those of the previous group are released."""
    if key not in _of_group:
        _of_group.clear()
        _of_group[key] = Resources(store=store())
    return _of_group[key]

"""What a tuner trains on: frozen features, computed once, or pixels, loaded when needed.

A training image has V views, random crops drawn from its content and the number of the view (see
`calprompt.features.encoding`), so neither seeds nor order nor batches matter, and all methods see the same. Epoch e
trains on view (e - 1) mod V; a text-only tuner never runs the image tower while training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calprompt.clip.preprocessing import Preprocessing
from calprompt.data.images import Images
from calprompt.features.encoding import Uint8Preprocessing, load_views, normalise
from calprompt.parallel import map_in_threads


@dataclass(eq=False)
class FeatureBank:
    """Frozen features to train on, in V views.

    Attributes:
        features: [V, n, D].
        labels: Class indices [n].
    """

    features: Tensor
    labels: Tensor

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The features of this epoch's view, [len(indices), D]."""
        return self.features[(epoch - 1) % len(self.features), indices]

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """Nothing: the images themselves are frozen features."""
        return None


@dataclass(eq=False)
class PixelBank:
    """Pixels to train on, loaded when needed, and the frozen features of the same views, if they were computed.

    Attributes:
        source: The images.
        labels: Class indices [n].
        preprocessing: From an image to pixels.
        views: How many views each image has; 0: only the one for evaluation.
        features: Frozen features [V, n, D].
    """

    source: Images
    labels: Tensor
    preprocessing: Preprocessing
    views: int
    features: Tensor | None = None

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        """The pixels of this epoch's view, [len(indices), 3, size, size]."""
        view = 1 + (epoch - 1) % self.views if self.views and self.source.augmented else 0
        as_uint8 = Uint8Preprocessing.from_dict(self.preprocessing.to_dict())
        loaded = map_in_threads(lambda i: load_views(self.source.read(i), as_uint8, [view])[0], indices.tolist())
        return normalise(torch.stack(list(loaded)), self.preprocessing)

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        """The frozen features of the same views, if they were computed."""
        return None if self.features is None else self.features[(epoch - 1) % len(self.features), indices]

"""What the words are trained to meet: stored features of the pool's pictures, and invented ones of ImageNet's classes.

ImageNet's photographs are not at hand, but its classifier is, and a linear classifier tells what it was made for. If
the features of a class are spread around their mean m by the same covariance S in every class, the best weights are
w = S⁻¹ m, so m = S w. S is measured on photographs of CIFAR-10; how far the means lie apart is set so that the
classifier is right as often as it was on ImageNet's photographs.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.concepts import Concept
from pretrain.photo.features import load
from pretrain.pool import MEDIA, Pool
from pretrain.selection import CLOTHES, FASHION

TOP1 = 0.72  # of the classifier on ImageNet's photographs at 160 pixels
_SHIRT = Concept("photo/shirt", "shirt", ("shirt",))  # not the emoji of that name, which is a t-shirt


def imagenet_mean(network: nn.Module) -> Tensor:
    """The mean feature [1280] on ImageNet, from the statistics of the last batch normalisation.

    What goes into the last ReLU6 is normal with mean `bias` and deviation `weight`, channel by channel.
    """
    mean, deviation = network.bn2.bias.double(), network.bn2.weight.double().abs()

    def rectified(limit: float) -> Tensor:  # E[max(y - limit, 0)]
        z = (mean - limit) / deviation
        density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
        return deviation * density + (mean - limit) * 0.5 * (1 + torch.erf(z / math.sqrt(2)))

    return (rectified(0.0) - rectified(6.0)).float()


class Pictures:
    """Stored views of the pool's pictures by medium and concept."""

    def __init__(self, pool: Pool, folder: Path, leave_out: tuple[str, ...] = ()) -> None:
        self.views = [torch.from_numpy(np.array(view)) for view in load(folder, len(pool.pictures))]
        self.concepts = [*pool.concepts, _SHIRT]
        concept = pool.concept.copy()
        clothes = np.flatnonzero(pool.source == "fashion")
        at = FASHION.index("shirt") * CLOTHES
        concept[clothes[at : at + CLOTHES]] = len(pool.concepts)
        unclear = (pool.source == "gameicons") & np.isin(
            concept, [number for number, each in enumerate(pool.concepts) if each.label.startswith("flag ")]
        )  # outlines of countries
        used = np.flatnonzero(~unclear & ~np.isin(pool.source, leave_out))
        self.concept, self.medium, self.source = concept, pool.medium, pool.source
        self.rows: dict[int, dict[int, list[int]]] = {}
        for row in used.tolist():
            self.rows.setdefault(int(pool.medium[row]), {}).setdefault(int(concept[row]), []).append(row)
        self.media = [medium for medium in range(len(MEDIA)) if medium in self.rows]
        self.known = {medium: list(self.rows[medium]) for medium in self.media}

    def features(self, rows: list[int], dice: random.Random) -> Tensor:
        """[n, 1280], each in one of its views."""
        counts = [len(view) for view in self.views]
        chosen = [
            dice.choice([view for view, count in zip(self.views, counts, strict=True) if row < count]) for row in rows
        ]
        return torch.stack([view[row] for view, row in zip(chosen, rows, strict=True)]).float()


class Invented:
    """Features of ImageNet's classes, drawn from normal distributions."""

    def __init__(self, network: nn.Module, pictures: Pictures) -> None:
        self.mean = imagenet_mean(network)
        self.weights = (network.classifier.weight - network.classifier.weight.mean(0)).float()
        photos = np.flatnonzero(pictures.source == "cifar10")
        groups = pictures.concept[photos]
        spread = torch.zeros(len(self.mean), len(self.mean), dtype=torch.float64)
        views = [view for view in pictures.views[:4] if len(view) > photos.max()]
        for view in views:
            features = view[torch.from_numpy(photos)].double()
            for group in np.unique(groups):
                own = features[torch.from_numpy(groups == group)]
                own = own - own.mean(0)
                spread += own.T @ own / len(photos) / len(views)
        trace = spread.diagonal().mean()
        spread = (0.9 * spread + 0.1 * trace * torch.eye(len(spread))).float()
        self.covariance, self.root = spread, torch.linalg.cholesky(spread)
        self.directions = self.weights @ spread  # [1000, 1280]: where the means lie, up to a factor
        self.factor = 1.0
        self.factor = self._fit(network.classifier.bias)

    def _fit(self, bias: Tensor) -> float:
        dice, low, high = torch.Generator().manual_seed(0), 0.0, 20.0
        labels = torch.randint(len(self.weights), (3000,), generator=dice)
        noise = torch.randn(3000, len(self.mean), generator=dice) @ self.root.T
        for _ in range(20):
            factor = (low + high) / 2
            logits = (factor * self.directions[labels] + noise) @ self.weights.T + bias - bias.mean()
            right = (logits.argmax(1) == labels).float().mean()
            low, high = (factor, high) if right < TOP1 else (low, factor)
        return factor

    def features(self, labels: Tensor, dice: torch.Generator) -> Tensor:
        """[n, 1280] of these classes."""
        noise = torch.randn(len(labels), len(self.mean), generator=dice) @ self.root.T
        return self.mean + self.factor * self.directions[labels] + noise

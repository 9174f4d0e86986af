"""StoredLogits results drawn at random, with everything any calibrator may need."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from calprompt.calibrators import StoredLogits


def drawn(seed: int, n: int = 60, classes: int = 5, scale: float = 6.0) -> tuple[Tensor, Tensor]:
    """Logits that know something of their labels, too sure of it."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator) + 0.8 * F.one_hot(labels, classes)
    return scale * logits, labels


def complete(logits: Tensor, labels: Tensor | None, seed: int = 0, base: int = 7) -> StoredLogits:
    """A record with every field."""
    generator = torch.Generator().manual_seed(seed + 1)
    n, classes = logits.shape

    def text(count: int) -> Tensor:
        return F.normalize(torch.randn(count, 8, generator=generator), dim=-1)

    return StoredLogits(
        logits,
        labels,
        text=text(classes),
        frozen_text=text(classes),
        base_text=text(base),
        base_frozen_text=text(base),
        zero_shot_logits=20 + 3 * torch.randn(n, classes, generator=generator),
        logit_scale=100.0,
    )

"""Where pictures lie: a projection of the tower's features and one vector for every concept, learned together.

    stored features of the pool ──┐
                                  ├─ projection [1280 -> 384] ── which of all concepts? (one vector each)
    invented features of ImageNet ┘                              which of ImageNet's classes?

There is no text in it yet, so a step is a few products of matrices. The vectors are what the text tower learns to say.
A short fit and a long one begin at the same place, and their mean is better than either on what was left out.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pretrain.photo.pictures import Invented, Pictures
from pretrain.photo.tower import WIDTH
from pretrain.pool import MEDIA

DIMENSIONS = 384
SHARES = {"drawing": 0.5, "ink": 0.14, "sketch": 0.2, "photo": 0.16}


@dataclass(frozen=True)
class Fit:
    """How prototypes are learned.

    Attributes:
        steps: Of the optimiser.
        batch: Pictures of the pool in a step, and half as many of ImageNet.
        smoothing: Share of the target that is spread over all concepts, the noise of captions.
        drop: Share of the tower's features that a step does not see.
        tie: How much drawings of a thing are drawn to where photographs of it lie.
    """

    steps: int = 3000
    batch: int = 256
    smoothing: float = 0.1
    drop: float = 0.1
    tie: float = 0.5
    rate: float = 2e-3
    decay: float = 0.1
    seed: int = 0


FITS = (Fit(steps=1500), Fit(steps=3000))


class Prototypes(nn.Module):
    """Projection, vectors of the pool's concepts and of ImageNet's classes, and the scale of their cosines."""

    def __init__(self, concepts: int, classes: int = 1000) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, DIMENSIONS)
        self.pool = nn.Parameter(0.02 * torch.randn(concepts, DIMENSIONS))
        self.classes = nn.Parameter(0.02 * torch.randn(classes, DIMENSIONS))
        self.scale = nn.Parameter(torch.tensor(math.log(15.0)))

    def embed(self, features: Tensor) -> Tensor:
        return F.normalize(self.head(features), dim=1)

    def begin(self, pictures: Pictures, invented: Invented) -> None:
        """Start with the main directions of both, and with the means."""
        sums, counts = torch.zeros(len(self.pool), WIDTH), torch.zeros(len(self.pool), 1)
        for by_concept in pictures.rows.values():
            for concept, rows in by_concept.items():
                sums[concept] += pictures.views[0][torch.tensor(rows[:16])].float().mean(0)
                counts[concept] += 1
        means = sums / counts.clamp(min=1) - invented.mean
        means[counts[:, 0] == 0] = 0
        drawn = torch.linalg.svd(means - means.mean(0), full_matrices=False)[2][:160]
        seen = torch.linalg.svd(invented.directions, full_matrices=False)[2][: DIMENSIONS - len(drawn)]
        basis = torch.linalg.qr(torch.cat([seen, drawn, torch.randn(DIMENSIONS, WIDTH)])[:DIMENSIONS].T)[0].T
        with torch.no_grad():
            self.head.weight.copy_(basis)
            self.head.bias.copy_(-basis @ invented.mean)
            self.pool.copy_(F.normalize(means @ basis.T, dim=1))
            self.classes.copy_(F.normalize(invented.directions @ basis.T, dim=1))


def fit(
    pictures: Pictures, invented: Invented, nouns: dict[int, Tensor], path: Path, plan: Fit, echo=print
) -> Prototypes:
    """Learn them, or read what was learned before.

    Args:
        pictures: Of the pool.
        invented: Of ImageNet.
        nouns: Of concepts that have a place among ImageNet's classes, the classifier's weights [1280] for them.
        path: Where the result is kept.
        plan: How to learn.
        echo: Where progress goes.
    """
    model = Prototypes(len(pictures.concepts), len(invented.weights))
    if path.is_file():
        model.load_state_dict(load_file(path))
        return model.eval()
    torch.manual_seed(plan.seed)
    model.begin(pictures, invented)
    optimiser = torch.optim.AdamW(
        [
            {"params": [model.pool, model.classes], "weight_decay": 0.0, "share": plan.rate},
            {"params": [model.head.weight], "weight_decay": plan.decay, "share": 0.2 * plan.rate},
            {"params": [model.head.bias, model.scale], "weight_decay": 0.0, "share": 0.2 * plan.rate},
        ],
        betas=(0.9, 0.98),
    )
    known = torch.zeros(len(pictures.concepts), dtype=torch.bool)
    for by_concept in pictures.rows.values():
        known[list(by_concept)] = True
    tied = torch.tensor(sorted(nouns))
    directions = torch.stack([nouns[number] for number in tied.tolist()]) @ invented.covariance
    shares = [SHARES[MEDIA[medium]] for medium in pictures.media]
    dice, normal, begun = random.Random(plan.seed), torch.Generator().manual_seed(plan.seed), time.monotonic()
    for step in range(plan.steps):
        for group in optimiser.param_groups:
            group["lr"] = group["share"] * min(1.0, (step + 1) / 100, 2 * (plan.steps - step) / plan.steps)
        rows, labels = [], []
        for medium in dice.choices(pictures.media, shares, k=plan.batch):
            labels.append(dice.choice(pictures.known[medium]))
            rows.append(dice.choice(pictures.rows[medium][labels[-1]]))
        features = pictures.features(rows, dice)
        others = torch.randint(len(invented.weights), (plan.batch // 2,), generator=normal)
        both = torch.cat([features, invented.features(others, normal)])
        images = model.embed(F.dropout(both, plan.drop))
        scale = model.scale.exp()
        pool = scale * images[: plan.batch] @ F.normalize(model.pool, dim=1).T
        pool = pool.masked_fill(~known, -1e4)
        classes = scale * images[plan.batch :] @ F.normalize(model.classes, dim=1).T
        losses = [_loss(pool, torch.tensor(labels), plan.smoothing, known), F.cross_entropy(classes, others)]
        some = torch.randint(len(tied), (plan.batch,), generator=normal)
        photographed = F.normalize(directions[some] @ model.head.weight.T, dim=1)
        apart = 1 - (photographed * F.normalize(model.pool[tied[some]], dim=1)).sum(1)
        optimiser.zero_grad()
        (losses[0] + losses[1] + plan.tie * apart.mean()).backward()
        optimiser.step()
        if (step + 1) % 200 == 0:
            pairs = ((pool, torch.tensor(labels)), (classes, others))
            right = [(logits.argmax(1) == wanted).float().mean().item() for logits, wanted in pairs]
            echo(
                f"step {step + 1:,} of {plan.steps:,}: losses {losses[0].item():.2f} {losses[1].item():.2f}, "
                f"right {right[0]:.2f} {right[1]:.2f}, apart {apart.mean().item():.2f}, scale {scale.item():.1f}, "
                f"{time.monotonic() - begun:.0f} s",
                flush=True,
            )
    save_file({name: value.detach().contiguous() for name, value in model.state_dict().items()}, path)
    return model.eval()


def fit_mean(pictures: Pictures, invented: Invented, nouns: dict[int, Tensor], folder: Path, echo=print) -> Prototypes:
    """The mean of all `FITS`: of projections, of unit vectors and of the logarithms of scales."""
    members = [
        fit(pictures, invented, nouns, folder / f"prototypes-{plan.steps}.safetensors", plan, echo) for plan in FITS
    ]
    states = []
    for member in members:
        state = member.state_dict()
        states.append(state | {name: F.normalize(state[name], dim=1) for name in ("pool", "classes")})
    mean = Prototypes(len(pictures.concepts), len(invented.weights))
    mean.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
    return mean.eval()


def _loss(logits: Tensor, labels: Tensor, smoothing: float, known: Tensor) -> Tensor:
    """Cross-entropy, of whose target a share is spread over the concepts that are there."""
    logs = logits.log_softmax(1)
    right = logs[torch.arange(len(labels)), labels]
    return -((1 - smoothing) * right + smoothing * logs[:, known].mean(1)).mean()

"""Training the text tower of a locked image tower: sentences learn where their pictures lie.

    sentence about a concept of the pool ──┐             ┌── the concept's vector
    sentence about a class of ImageNet  ───┼─ text tower ┼── the class's vector
    name or definition of any visible noun ┘             └── where a regression puts its photographs
                         │
                         └── and each stored picture finds its sentence among those of the batch

The projection of the image tower and the vectors come from `prototypes`, and stay as they are.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from torch import Tensor

from pretrain.captions import caption
from pretrain.checkpoint import resume, save
from pretrain.model import CONTEXT, END, START, encode_text
from pretrain.photo.nouns import SHORT, Nouns, frame
from pretrain.photo.pictures import Invented, Pictures
from pretrain.photo.prototypes import DIMENSIONS, SHARES, Prototypes
from pretrain.photo.tower import ARCHITECTURE, SIZE
from pretrain.photo.words import Vectors
from pretrain.pool import MEDIA
from pretrain.train import groups

CONFIG = {
    "embed_dim": DIMENSIONS,
    "vision_cfg": {
        "timm_model_name": ARCHITECTURE, "timm_model_pretrained": False, "timm_pool": "avg", "timm_proj": "linear",
        "timm_proj_bias": True, "image_size": SIZE,
    },
    "text_cfg": {"context_length": CONTEXT, "vocab_size": 49408, "width": 128, "heads": 4, "layers": 3},
}  # fmt: skip
TABLE = "token_embedding.weight"


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        steps: Of the optimiser.
        concepts: Of the pool in a batch.
        classes: Of ImageNet in a batch.
        nouns: Of WordNet in a batch.
        fall: The rate falls to zero over this last share of the steps.
    """

    steps: int = 7000
    concepts: int = 128
    classes: int = 48
    nouns: int = 80
    rate: float = 1e-3
    token_rate: float = 1e-3
    decay: float = 0.05
    warmup: float = 0.03
    fall: float = 0.5
    average: float = 0.998
    save_every: int = 250
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """The share of the full rates at a step."""
        rise, fall = (step + 1) / (self.warmup * self.steps), (self.steps - step) / (self.fall * self.steps)
        return max(0.0, min(1.0, rise, fall))


class Sentences:
    """Texts as tokens of CLIP's tokenizer."""

    def __init__(self) -> None:
        self.tokenizer = SimpleTokenizer()

    def encode(self, model: CLIP, texts: list[str]) -> Tensor:
        """Unit features [n, D]; in groups by length, so that short texts are not padded to long ones."""
        rows = [[START, *self.tokenizer.encode(text)[: CONTEXT - 2], END] for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        features = []
        for part in np.array_split(order, min(5, len(order))):
            longest = len(rows[part[-1]])
            padded = torch.tensor([rows[i] + [0] * (longest - len(rows[i])) for i in part])
            features.append(encode_text(model, padded))
        return F.normalize(torch.cat(features)[torch.tensor(order).argsort()], dim=1)


def token_table(vectors: Vectors, width: int, seed: int) -> Tensor:
    """Vectors [49408, width] of all tokens: of a word its own, of a part of words the mean of those it is in."""
    tokenizer, dice = SimpleTokenizer(), torch.Generator().manual_seed(seed)
    sums, counts = np.zeros((CONFIG["text_cfg"]["vocab_size"], 100), np.float32), np.zeros(49408, np.float32)
    for number, word in enumerate(vectors.words[:120_000]):
        if word.isascii():
            tokens = tokenizer.encode(word)
            share = 1.0 if len(tokens) == 1 else 0.02
            for token in tokens:
                sums[token] += share * vectors.table[number]
                counts[token] += share
    table, known = torch.from_numpy(sums / np.maximum(counts, 1e-6)[:, None]), torch.from_numpy(counts > 0)
    spread = torch.linalg.qr(torch.randn(width, 100, generator=dice))[0].T  # [100, width], orthonormal rows
    rows = 0.5 * table @ spread / table[known].norm(dim=1).mean()
    rows[~known] = 0.5 * F.normalize(torch.randn(int((~known).sum()), width, generator=dice), dim=1)
    return rows + 0.01 * torch.randn(rows.shape, generator=dice)


class Material:
    """Everything that batches are drawn from."""

    def __init__(
        self, pictures: Pictures, invented: Invented, nouns: Nouns, prototypes: Prototypes, plan: Plan
    ) -> None:
        self.pictures, self.invented, self.nouns, self.plan, self.prototypes = (
            pictures,
            invented,
            nouns,
            plan,
            prototypes,
        )
        with torch.no_grad():
            self.pool = F.normalize(prototypes.pool, dim=1)
            self.classes = F.normalize(prototypes.classes, dim=1)
            self.photographed = F.normalize(nouns.weights @ (invented.covariance @ prototypes.head.weight.T), dim=1)
        self.drawn = {name.lower(): number for number, each in enumerate(pictures.concepts) for name in each.names}
        self.drawn |= {each.label.lower(): number for number, each in enumerate(pictures.concepts)}
        self.shares = [SHARES[MEDIA[medium]] for medium in pictures.media]

    def batch(self, dice: random.Random, normal: torch.Generator) -> tuple[list[str], Tensor, Tensor]:
        """Sentences [n], where they belong [n, D], and a picture [n, 1280] of each that has one: those come first."""
        taken: dict[int, int] = {}
        while len(taken) < self.plan.concepts:
            medium = dice.choices(self.pictures.media, self.shares)[0]
            taken.setdefault(dice.choice(self.pictures.known[medium]), medium)
        texts = [self._caption(each, medium, dice) for each, medium in taken.items()]
        rows = [dice.choice(self.pictures.rows[medium][each]) for each, medium in taken.items()]
        labels = dice.sample(range(len(self.classes)), self.plan.classes)
        texts += [self.nouns.describe(label, dice) for label in labels]
        pictures = [self.pictures.features(rows, dice), self.invented.features(torch.tensor(labels), normal)]
        targets = [self.pool[list(taken)], self.classes[labels]]
        for _ in range(self.plan.nouns):
            text, target = self._noun(dice)
            texts.append(text)
            targets.append(target[None])
        return texts, torch.cat(targets), torch.cat(pictures)

    def _caption(self, number: int, medium: int, dice: random.Random) -> str:
        """A sentence about a concept of the pool, every second time a short one."""
        concept = self.pictures.concepts[number]
        if dice.random() < 0.5:
            return caption(concept, MEDIA[medium], dice)
        name = concept.label if dice.random() < 0.6 else dice.choice(concept.names)
        return dice.choice(SHORT).replace("{}", name.removeprefix("flag ") if dice.random() < 0.5 else name)

    def _noun(self, dice: random.Random) -> tuple[str, Tensor]:
        if dice.random() < 0.1:
            row = dice.randrange(len(self.nouns.definitions))
            return self.nouns.definitions[row], self.photographed[row]
        often = dice.random() < 0.25
        name, row = self.nouns.names[
            dice.choice(self.nouns.familiar) if often else dice.randrange(len(self.nouns.names))
        ]
        drawn = self.drawn.get(name.lower())
        text = frame(dice, photo=drawn is not None).replace("{}", name.lower())
        if drawn is None:
            return text, self.photographed[row]
        return text, F.normalize(self.photographed[row] + self.pool[drawn], dim=0)


def build(prototypes: Prototypes, vectors: Vectors, seed: int) -> CLIP:
    """A new model with the projection and the scale of the prototypes."""
    torch.manual_seed(seed)
    model = CLIP(CONFIG["embed_dim"], dict(CONFIG["vision_cfg"]), dict(CONFIG["text_cfg"]))
    with torch.no_grad():
        model.visual.head.proj.weight.copy_(prototypes.head.weight)
        model.visual.head.proj.bias.copy_(prototypes.head.bias)
        model.token_embedding.weight.copy_(token_table(vectors, CONFIG["text_cfg"]["width"], seed))
        model.logit_scale.copy_(prototypes.scale)
    model.visual.requires_grad_(False)
    return model


def train(material: Material, vectors: Vectors, folder: Path, plan: Plan, echo=print) -> CLIP:
    """Train until the plan is fulfilled, going on from the last checkpoint; the model with averaged weights."""
    folder.mkdir(parents=True, exist_ok=True)
    model = build(material.prototypes, vectors, plan.seed)
    model.token_embedding.sparse = True
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    rest = [value for name, value in trained.items() if name != TABLE]
    optimiser = torch.optim.AdamW(groups(rest, plan.decay), lr=plan.rate, betas=(0.9, 0.98), eps=1e-6)
    sparse = torch.optim.SparseAdam([trained[TABLE]], lr=plan.token_rate, betas=(0.9, 0.98))
    average = {name: value.detach().clone() for name, value in trained.items()}
    record = resume(folder, trained, average, [optimiser, sparse])
    step, seconds = record.get("steps", 0), record.get("seconds", 0)
    sentences, begun, losses = Sentences(), time.monotonic(), []
    while step < plan.steps:
        dice, normal = random.Random(f"{plan.seed}/{step}"), torch.Generator().manual_seed(10**7 * plan.seed + step)
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * plan.rate_at(step)
        sparse.param_groups[0]["lr"] = plan.token_rate * plan.rate_at(step)
        parts = batch_losses(model, material, sentences, dice, normal)
        optimiser.zero_grad()
        sparse.zero_grad()
        torch.stack(parts).sum().backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        optimiser.step()
        sparse.step()
        step += 1
        losses.append([part.item() for part in parts])
        if step % 5 == 0:
            kept = min(plan.average**5, (step + 1) / (step + 50))
            for name, value in trained.items():
                average[name].lerp_(value.detach(), 1 - kept)
        if step % 100 == 0:
            now = (seconds + time.monotonic() - begun) / 60
            means = " ".join(f"{mean(column):.3f}" for column in zip(*losses, strict=True))
            scale = model.logit_scale.exp().item()
            echo(f"step {step:,} of {plan.steps:,}: losses {means}, scale {scale:.1f}, {now:.1f} min", flush=True)
            losses = []
        if step % plan.save_every == 0 or step == plan.steps:
            now = round(seconds + time.monotonic() - begun)
            save(folder, trained, average, [optimiser, sparse], {"steps": step, "seconds": now})
    with torch.no_grad():
        for name, value in trained.items():
            value.copy_(average[name])
    model.token_embedding.sparse = False
    return model.eval()


def batch_losses(model: CLIP, material: Material, sentences: Sentences, dice, normal) -> list[Tensor]:
    """How far texts are from where they belong; which place is whose; which sentence is of a picture."""
    texts, targets, pictures = material.batch(dice, normal)
    features = sentences.encode(model, texts)
    cosines = features @ targets.T
    places = F.cross_entropy(20 * cosines, torch.arange(len(texts))) / math.log(len(texts))
    with torch.no_grad():
        images = material.prototypes.embed(pictures)
    concepts, scale = material.plan.concepts, model.logit_scale.exp()
    contrasts = []
    for part in (slice(0, concepts), slice(concepts, len(pictures))):
        logits = scale * images[part] @ features[: len(pictures)][part].T
        contrasts.append(F.cross_entropy(logits, torch.arange(len(logits))) / math.log(len(logits)))
    return [2 * (1 - cosines.diagonal()).mean(), places, torch.stack(contrasts).mean()]

"""pocket-vit: the ViT of pocket, trained again in the text space of pocket-photo, whose image tower is its teacher.

    a stored view of a picture ──┬── teacher: EfficientNet, 160 pixels ─┐
                                 └── student: ViT, 48 pixels ───────────┴─ near each other, and which of all concepts?
    a new view of a picture ──────── student: ViT, 48 pixels ───────────── which of all concepts?

A concept is sentences about it in pocket-photo's text tower. This tower and the teacher stay as they are. The student
begins with the pocket's weights, and its projection is learned first. Stored views are cropped, mirrored and lit anew
each time they are seen. The scale is chosen on what was left out, as pocket-photo's was.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from open_clip.model import CLIP
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pretrain.captions import caption
from pretrain.checkpoint import resume, save
from pretrain.export import write_files
from pretrain.model import CONFIG as POCKET
from pretrain.photo.features import CHUNK, extract, render
from pretrain.photo.pictures import Pictures
from pretrain.photo.prototypes import SHARES
from pretrain.photo.scale import choose_scale, left_out
from pretrain.photo.tower import Extractor
from pretrain.photo.train import CONFIG as PHOTO
from pretrain.photo.train import Sentences
from pretrain.pool import MEDIA, Pool
from pretrain.train import groups
from pretrain.views import MEAN, STD, views

CONFIG = {**PHOTO, "vision_cfg": POCKET["vision_cfg"]}
_MEAN, _STD = torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(STD).view(1, 3, 1, 1)


@dataclass(frozen=True)
class Plan:
    """How to train; shares are of the time.

    Attributes:
        minutes: Of training, after the teacher's features are there.
        views: Of every picture that the teacher looks at.
        stored: Stored views in a batch.
        fresh: New views in a batch.
        sentences: About every concept, of which a step takes one.
        sample: Pictures that the projection is learned from, before the rest.
        steps: Of learning the projection.
        near: The weight of the distance from the teacher.
        like: The weight of the teacher's opinion about concepts.
        smoothing: Share of a label that is spread over all concepts.
        dropped: Share of the patches that a step does not see.
        whole: From this share of the time on, every step sees all patches.
        fall: The rate falls to zero over this last share.
    """

    minutes: float = 75.0
    views: int = 1
    stored: int = 64
    fresh: int = 64
    sentences: int = 3
    sample: int = 8192
    steps: int = 300
    near: float = 2.0
    like: float = 1.0
    smoothing: float = 0.1
    dropped: float = 0.5
    whole: float = 0.75
    rate: float = 5e-4
    decay: float = 0.05
    warmup: float = 0.03
    fall: float = 0.6
    average: float = 0.995
    save_every: int = 20
    seed: int = 0

    def rate_at(self, share: float) -> float:
        return self.rate * max(0.0, min(1.0, (share + 1e-3) / self.warmup, (1 - share) / self.fall))


class Lesson:
    """What batches are drawn from: pixels, where the teacher puts them, and sentences about all concepts."""

    def __init__(self, pool: Pool, features: Path, teacher: CLIP, plan: Plan) -> None:
        self.known, self.plan = Pictures(pool, features), plan
        self.pictures, self.media = torch.from_numpy(pool.pictures), torch.from_numpy(pool.medium)
        self.labels = torch.from_numpy(self.known.concept).long()
        self.photos = self.pictures[torch.from_numpy(np.flatnonzero(pool.source == "cifar10"))]
        self.pixels = [
            torch.cat([_bytes(render(pool, view, start)) for start in range(0, len(pool.pictures), CHUNK)])
            for view in range(plan.views)
        ]
        with torch.no_grad():
            looks = self.known.views[: plan.views]
            self.targets = [F.normalize(teacher.visual.head(look.float()), dim=1) for look in looks]
            self.texts = self._texts(teacher)

    def _texts(self, teacher: CLIP) -> Tensor:
        """[sentences, concepts, D]: each is true of a medium that the pool has the concept in."""
        dice, sentences, found = random.Random(self.plan.seed), Sentences(), []
        media = [
            [medium for medium in self.known.media if number in self.known.rows[medium]] or self.known.media
            for number in range(len(self.known.concepts))
        ]
        for _ in range(self.plan.sentences):
            texts = [
                caption(concept, MEDIA[dice.choice(seen)], dice)
                for concept, seen in zip(self.known.concepts, media, strict=True)
            ]
            parts = (texts[at : at + 512] for at in range(0, len(texts), 512))
            found.append(torch.cat([sentences.encode(teacher, part) for part in parts]))
        return torch.stack(found)

    def draw(self, count: int, dice: random.Random) -> Tensor:
        """Rows of the pool: a medium by its share, a concept of it, a picture of that."""
        rows, shares = self.known.rows, [SHARES[MEDIA[medium]] for medium in self.known.media]
        media = dice.choices(self.known.media, shares, k=count)
        return torch.tensor([dice.choice(rows[medium][dice.choice(self.known.known[medium])]) for medium in media])

    def batch(self, dice: random.Random, normal: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels, labels, and where the teacher puts the first of them."""
        stored, fresh = self.draw(self.plan.stored, dice), self.draw(self.plan.fresh, dice)
        view = dice.randrange(self.plan.views)
        seen = self.pixels[view][stored].permute(0, 3, 1, 2).float() / 255
        new = views(self.pictures[fresh], self.media[fresh], self.photos, normal)
        pixels = torch.cat([(disturb(seen, normal) - _MEAN) / _STD, new])
        return pixels, self.labels[torch.cat([stored, fresh])], self.targets[view][stored]


def _bytes(pixels: Tensor) -> Tensor:
    """[n, 3, s, s] from 0 to 1 -> [n, s, s, 3] in 8 bits."""
    return (pixels * 255).round().byte().permute(0, 2, 3, 1)


def disturb(pixels: Tensor, dice: torch.Generator) -> Tensor:
    """A random crop of at least three quarters of each side, mirrored and lit at random; [n, 3, s, s]."""
    n = len(pixels)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=dice) - 1

    size = 0.875 + 0.125 * uniform(n)
    across, down = (1 - size) * uniform(2, n)
    mirror = torch.where(torch.rand(n, generator=dice) < 0.2, -1.0, 1.0)
    none = torch.zeros(n)
    rows = torch.stack([mirror * size, none, across, none, size, down], 1).view(n, 2, 3)
    grid = F.affine_grid(rows, list(pixels.shape), align_corners=False)
    cropped = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    return (cropped * (1 + 0.2 * uniform(n, 1, 1, 1)) + 0.08 * uniform(n, 3, 1, 1)).clamp(0, 1)


def begin(pocket: CLIP, teacher: CLIP, lesson: Lesson) -> CLIP:
    """The pocket's image tower, the teacher's text tower, and a projection between them.

    It begins as the linear map that is nearest to the teacher and to sentences, and learns what the tower will learn.
    """
    plan = lesson.plan
    model = CLIP(CONFIG["embed_dim"], {**CONFIG["vision_cfg"], "patch_dropout": 0.5}, dict(CONFIG["text_cfg"])).eval()
    state = {name: value for name, value in teacher.state_dict().items() if not name.startswith("visual.")}
    state |= {f"visual.{name}": value for name, value in pocket.visual.state_dict().items()}
    model.load_state_dict(state | {"visual.proj": model.visual.proj})
    model.requires_grad_(False)
    model.visual.proj = None
    dice = random.Random(plan.seed)
    rows = lesson.draw(plan.sample, dice)
    features, labels = look(model, lesson.pixels[0][rows].permute(0, 3, 1, 2).float() / 255), lesson.labels[rows]
    targets = lesson.targets[0][rows]
    ridge = 0.01 * features.square().sum(1).mean() * torch.eye(features.shape[1])
    both = F.normalize(targets + lesson.texts.mean(0)[labels], dim=1)
    projection = nn.Parameter(torch.linalg.solve(features.T @ features + ridge, features.T @ both))
    optimiser = torch.optim.Adam([projection], lr=1.0)
    for step in range(plan.steps):
        optimiser.param_groups[0]["lr"] = 2e-2 * projection.detach().std().item() * (1 - step / plan.steps)
        part = torch.tensor(dice.sample(range(len(rows)), min(256, len(rows))))
        images = F.normalize(features[part] @ projection, dim=1)
        optimiser.zero_grad()
        torch.stack(losses(images, labels[part], targets[part], lesson, model.logit_scale.exp(), dice)).sum().backward()
        optimiser.step()
    model.visual.proj = projection
    return model


@torch.no_grad()
def look(model: CLIP, pixels: Tensor) -> Tensor:
    """What the image tower makes of pixels from 0 to 1, of any size."""
    side = CONFIG["vision_cfg"]["image_size"]
    if pixels.shape[-1] != side:
        pixels = F.interpolate(pixels, size=(side, side), mode="bicubic", antialias=True).clamp(0, 1)
    return torch.cat([model.visual((part - _MEAN) / _STD) for part in pixels.split(128)])


def losses(
    images: Tensor, labels: Tensor, targets: Tensor, lesson: Lesson, scale: Tensor, dice: random.Random
) -> list[Tensor]:
    """Which concept, by the labels; how far the first images are from the teacher; which concept, by the teacher."""
    plan, texts = lesson.plan, dice.choice(lesson.texts)
    logits = scale * images @ texts.T
    right = F.cross_entropy(logits, labels, label_smoothing=plan.smoothing)
    near = (1 - (images[: len(targets)] * targets).sum(1)).mean()
    told = (scale * targets @ texts.T).log_softmax(1)
    like = F.kl_div(logits[: len(targets)].log_softmax(1), told, log_target=True, reduction="batchmean")
    return [right, plan.near * near, plan.like * like]


def train(model: CLIP, lesson: Lesson, folder: Path, echo=print) -> CLIP:
    """Train for the plan's minutes, going on from the last checkpoint; the model with averaged weights."""
    folder.mkdir(parents=True, exist_ok=True)
    plan, limit = lesson.plan, 60 * lesson.plan.minutes
    model.visual.requires_grad_(True)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    average = {name: value.detach().clone() for name, value in trained.items()}
    optimiser = torch.optim.AdamW(groups(trained.values(), plan.decay), lr=plan.rate, betas=(0.9, 0.98), eps=1e-6)
    record = resume(folder, trained, average, [optimiser])
    steps, before = record.get("steps", 0), record.get("seconds", 0.0)
    begun, found = time.monotonic(), []
    model.train()
    while (seconds := before + time.monotonic() - begun) < limit:
        share, number = seconds / limit, 10**7 * plan.seed + steps
        dice, normal = random.Random(number), torch.Generator().manual_seed(number)
        torch.manual_seed(number)  # of the patches dropped
        for group in optimiser.param_groups:
            group["lr"] = plan.rate_at(share)
        model.visual.patch_dropout.prob = plan.dropped if share < plan.whole else 0.0
        pixels, labels, targets = lesson.batch(dice, normal)
        parts = losses(F.normalize(model.visual(pixels), dim=1), labels, targets, lesson, model.logit_scale.exp(), dice)
        optimiser.zero_grad()
        torch.stack(parts).sum().backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimiser.step()
        steps += 1
        kept = min(plan.average, (steps + 1) / (steps + 10))
        for name, value in trained.items():
            average[name].lerp_(value.detach(), 1 - kept)
        found.append([part.item() for part in parts])
        if steps % plan.save_every == 0:
            means = " ".join(f"{mean(column):.3f}" for column in zip(*found, strict=True))
            echo(f"step {steps:,}: losses {means}, {seconds / 60:.1f} of {plan.minutes:g} min", flush=True)
            save(folder, trained, average, [optimiser], {"steps": steps, "seconds": seconds})
            found = []
    if steps != record.get("steps"):
        save(folder, trained, average, [optimiser], {"steps": steps, "seconds": seconds})
    with torch.no_grad():
        for name, value in trained.items():
            value.copy_(average[name])
    return model.eval()


def make(pool: Pool, models: dict[str, Path], sets: tuple[Path, Path], folder: Path, plan: Plan, echo=print) -> None:
    """Look at the pool with the teacher, train, choose the scale and write open_clip's files.

    Args:
        pool: All pictures.
        models: The folders of `pocket` and `pocket-photo`.
        sets: The sheets of the datasets, and Tux Paint's stamps, on which the scale is chosen.
        folder: Where the teacher's features are, in `photo`, and everything else goes, to `twin` and `twin-model`.
        plan: How to train.
        echo: Where progress goes.
    """
    (folder / "photo").mkdir(parents=True, exist_ok=True)
    pocket, teacher = (
        open_clip.create_model_from_pretrained(f"local-dir:{models[name]}", precision="fp32", return_transform=False)
        for name in ("pocket", "pocket-photo")
    )
    teacher.eval()
    extract(pool, Extractor(teacher.visual.trunk, folder / "photo"), folder / "photo", (None,) * plan.views, echo)
    lesson = Lesson(pool, folder / "photo", teacher, plan)
    model = train(begin(pocket, teacher, lesson), lesson, folder / "twin", echo)
    cells = left_out(*sets, lambda pixels: look(model, pixels).numpy())
    scale, found = choose_scale(model, cells, nn.Identity(), echo)
    state = model.state_dict() | {"logit_scale": torch.tensor(math.log(scale))}
    write_files(state, CONFIG, (MEAN, STD), folder / "twin-model")
    rounded = {name: {what: round(value, 3) for what, value in row.items()} for name, row in found.items()}
    (folder / "twin-model" / "left_out.json").write_text(json.dumps(rounded, indent=2) + "\n", "utf-8")


def pack(model: Path, folder: Path) -> None:
    """From open_clip's files to the package's, which have no text tower."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_file(model / "open_clip_model.safetensors")
    own = {name: value for name, value in weights.items() if name.startswith("visual.") or name == "logit_scale"}
    save_file(own, folder / "visual.safetensors", {"format": "pt"})
    for name in ("open_clip_config.json", "left_out.json", "zero_shot.json"):
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)

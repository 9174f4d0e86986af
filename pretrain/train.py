"""Contrastive training on renders made as they are needed; stops and resumes at any checkpoint.

        concepts ─┬─ one sentence each ──────── text tower ──┐
                  └─ two pictures each ──────── image tower ─┴─ each picture finds its sentence, and back

Two processes of one thread each, with a batch of their own, average their gradients.
The rate is constant, then falls to zero in a straight line; patches are dropped until more than half of the fall is
over.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from open_clip.model import CLIP
from torch import Tensor

from pretrain.captions import caption
from pretrain.checkpoint import FILE, record_of, resume, save
from pretrain.model import Words, build, encode_texts
from pretrain.pool import MEDIA, Pool
from pretrain.views import views

SHARES = {"drawing": 0.62, "ink": 0.07, "sketch": 0.24, "photo": 0.07}  # of the pictures of a batch
EACH = 2  # pictures of a sentence


@dataclass(frozen=True)
class Plan:
    """How to train; shares are of all renders.

    concepts  in a batch of one process: few at first, which is quick to learn from, then many, which is precise
    grow      the share from which on there are many
    fall      the rate falls to zero over this last share
    """

    renders: int = 1_700_000
    concepts: tuple[int, int] = (40, 96)
    processes: int = 2
    rate: float = 1.0e-3
    decay: float = 0.1
    warmup: float = 0.02
    grow: float = 0.55
    fall: float = 0.25
    average: float = 0.999  # of the weights that are kept, over steps
    save_every: int = 200
    seed: int = 0

    def concepts_at(self, share: float) -> int:
        return self.concepts[share >= self.grow]

    def rate_at(self, share: float) -> float:
        return self.rate * max(0.0, min(1.0, (share + 1e-4) / self.warmup, (1 - share) / self.fall))

    def patch_dropout(self, share: float) -> float:
        rest = (1 - share) / self.fall
        return 0.25 if rest > 0.4 else 0.0


class Sampler:
    """Batches of different concepts, with two pictures of each."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool, self.dice = pool, random.Random(seed)
        self.pictures, self.media = torch.from_numpy(pool.pictures), torch.from_numpy(pool.medium)
        self.photos = self.pictures[torch.from_numpy(np.flatnonzero(pool.source == "cifar10"))]
        self.rows: dict[int, dict[int, list[int]]] = {}
        for row, (concept, medium) in enumerate(zip(pool.concept.tolist(), pool.medium.tolist(), strict=True)):
            self.rows.setdefault(medium, {}).setdefault(concept, []).append(row)
        self.concepts = {medium: list(by_concept) for medium, by_concept in self.rows.items()}

    def batch(self, size: int) -> list[int]:
        """Rows of the pool, `EACH` of every concept, in the same medium."""
        taken: set[int] = set()
        rows: list[int] = []
        while len(taken) < size:
            medium = self.dice.choices(range(len(MEDIA)), [SHARES[name] for name in MEDIA])[0]
            concept = self.dice.choice(self.concepts[medium])
            if concept in taken:
                continue
            taken.add(concept)
            pictures = self.rows[medium][concept]
            rows += self.dice.sample(pictures, EACH) if len(pictures) >= EACH else self.dice.choices(pictures, k=EACH)
        return rows

    def describe(self, rows: list[int]) -> list[str]:
        """A sentence for each concept of a batch."""
        concepts, media = self.pool.concept[rows[::EACH]], self.pool.medium[rows[::EACH]]
        return [
            caption(self.pool.concepts[concept], MEDIA[medium], self.dice)
            for concept, medium in zip(concepts, media, strict=True)
        ]


def contrast(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    """Cross-entropy of pictures [2n, D] over sentences [n, D], and back, where two pictures are right."""
    n = len(texts)
    logits = scale * images @ texts.T  # [2n, n]
    index = torch.arange(n)
    right = logits.view(n, EACH, n)[index, :, index]  # [n, 2]
    back = logits.logsumexp(0)[:, None] - right
    return (F.cross_entropy(logits, index.repeat_interleave(EACH)) + back.mean()) / 2


def batch_loss(model: CLIP, words: Words, sampler: Sampler, dice: torch.Generator, concepts: int) -> Tensor:
    """Of one batch of new renders and new sentences."""
    rows = sampler.batch(concepts)
    index, texts = torch.tensor(rows), sampler.describe(rows)
    renders = views(sampler.pictures[index], sampler.media[index], sampler.photos, dice)
    images = F.normalize(model.visual(renders), dim=1)
    sentences = F.normalize(encode_texts(model, words, texts), dim=1)
    return contrast(images, sentences, model.logit_scale.exp())


def train(pool: Pool, folder: Path, plan: Plan) -> Path:
    """Train until the plan is fulfilled, going on from the last checkpoint; the file of the averaged weights."""
    checkpoint = folder / FILE
    if checkpoint.is_file():
        Words(pool.concepts).check(record_of(folder), checkpoint)
    (folder / "meeting").unlink(missing_ok=True)
    mp.spawn(_work, (pool, folder, plan), nprocs=plan.processes)
    return checkpoint


def _work(rank: int, pool: Pool, folder: Path, plan: Plan) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{(folder / 'meeting').resolve()}", rank=rank, world_size=plan.processes)
    torch.manual_seed(plan.seed)
    words = Words(pool.concepts)
    model = build(words, 0.5).train()
    trained = dict(model.named_parameters())
    average = {name: value.detach().clone() for name, value in trained.items()}
    optimiser = torch.optim.AdamW(groups(trained.values(), plan.decay), lr=plan.rate, betas=(0.9, 0.98), eps=1e-6)
    record = resume(folder, trained, average, [optimiser])
    done, step = record.get("renders", 0), record.get("steps", 0)
    torch.manual_seed(plan.seed + 1000 * rank + done)  # of the patches dropped
    sampler = Sampler(pool, plan.seed + 1000 * rank + done)
    dice = torch.Generator().manual_seed(plan.seed + 1000 * rank + done)
    watch = _Watch(plan, done, record.get("seconds", 0))
    while done < plan.renders:
        share = done / plan.renders
        for group in optimiser.param_groups:
            group["lr"] = plan.rate_at(share)
        model.visual.patch_dropout.prob = plan.patch_dropout(share)
        concepts = plan.concepts_at(share)
        loss = batch_loss(model, words, sampler, dice, concepts)
        optimiser.zero_grad()
        loss.backward()
        _share_gradients(model, plan.processes)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step, done = step + 1, done + concepts * EACH * plan.processes
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
            kept = min(plan.average, (step + 1) / (step + 10))
            for name, value in trained.items():
                average[name].lerp_(value, 1 - kept)
        if rank == 0:
            watch.look(done, loss.item() / _chance(concepts), model)
        if rank == 0 and (step % plan.save_every == 0 or done >= plan.renders):
            record = {"renders": done, "steps": step, "seconds": round(watch.seconds), "words": words.digest}
            save(folder, trained, average, [optimiser], record)
    dist.destroy_process_group()


def _chance(concepts: int) -> float:
    """The loss of a model that knows nothing."""
    return (math.log(concepts) + math.log(EACH * concepts)) / 2


class _Watch:
    """Says every ten seconds how training goes."""

    def __init__(self, plan: Plan, done: int, seconds: float) -> None:
        self.plan, self.first, self.before = plan, done, seconds
        self.begun = self.shown = time.monotonic()
        self.losses: list[float] = []

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.begun

    def look(self, done: int, loss: float, model: CLIP) -> None:
        self.losses.append(loss)
        now = time.monotonic()
        if now - self.shown < 10:
            return
        speed = (done - self.first) / (now - self.begun)
        print(
            f"{done:,} of {self.plan.renders:,} renders  loss {mean(self.losses):.3f} of chance's  "
            f"scale {float(model.logit_scale.detach().exp()):.1f}  {speed:.0f}/s  {self.seconds / 60:.0f} min, "
            f"{(self.plan.renders - done) / speed / 60:.0f} to go",
            flush=True,
        )
        self.shown, self.losses = now, []


def groups(parameters: Iterable[Tensor], decay: float) -> list[dict[str, Any]]:
    """Matrices decay, vectors and the scale do not."""
    values = list(parameters)
    return [
        {"params": [value for value in values if value.ndim >= 2], "weight_decay": decay},
        {"params": [value for value in values if value.ndim < 2], "weight_decay": 0.0},
    ]


def _share_gradients(model: CLIP, processes: int) -> None:
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient) / processes)

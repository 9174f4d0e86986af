"""The pocket's ViT in the text space of pocket-photo: it learns from the other tower, goes on, and is a backbone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F

from calprompt.clip.load import load_backbone
from calprompt.pocket import MODELS
from pretrain import twin
from pretrain.checkpoint import record_of
from pretrain.concepts import Concept
from pretrain.photo.tower import WIDTH
from pretrain.pool import MEDIA, Pool

CONCEPTS = [
    Concept("1f431", "cat", ("cat", "kitty"), ("pet",), "animal"),
    Concept("1f34e", "red apple", ("red apple", "apple"), ("fruit",), "fruit"),
    Concept("1f697", "car", ("car", "automobile"), ("wheels",), "vehicle"),
]
PLAN = twin.Plan(minutes=1, stored=6, fresh=6, sentences=2, sample=12, steps=2, save_every=2)


def quiet(*_, **__) -> None:
    pass


@pytest.fixture(scope="module")
def pool() -> Pool:
    """A picture of each concept in each medium, of a colour of its concept."""
    concept, medium = np.repeat(np.arange(3), len(MEDIA)), np.tile(np.arange(len(MEDIA)), 3)
    pictures = np.full((len(concept), 48, 48, 4), 255, dtype=np.uint8)
    pictures[np.arange(len(concept)), :, :, concept] = 30
    return Pool(CONCEPTS, pictures, concept, medium, np.where(medium == 3, "cifar10", "noto"))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures the teacher looked at, whose trunk is a table of colours here."""
    seen: list[int] = []

    class Colours:
        def __init__(self, trunk, folder) -> None:
            self.table = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0)).numpy()

        def __call__(self, pixels: torch.Tensor) -> np.ndarray:
            seen.append(len(pixels))
            return 3 * pixels.mean((2, 3)).numpy() @ self.table

    monkeypatch.setattr(twin, "Extractor", Colours)
    return seen


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(data, stamps, tower):
        yield "noise", torch.from_numpy(tower(torch.rand(40, 3, 60, 60))), np.arange(40) % 2, ["a cat.", "a car."]

    monkeypatch.setattr(twin, "left_out", cells)


@pytest.mark.usefixtures("left_out")
def test_a_twin_is_a_vit_with_the_words_of_pocket_photo(pool: Pool, tmp_path: Path, monkeypatch, drawn) -> None:
    ticks = iter(range(0, 10_000, 7))
    monkeypatch.setattr(twin.time, "monotonic", lambda: float(next(ticks)))
    for minutes in (0.5, 1.0):
        twin.make(pool, MODELS, (tmp_path, tmp_path), tmp_path, replace(PLAN, minutes=minutes), quiet)
    assert drawn == [12], "the teacher looks at every picture once, whatever is trained"
    assert record_of(tmp_path / "twin")["seconds"] >= 60 - 7
    made, photo = load_backbone(tmp_path / "twin-model"), load_backbone("pocket-photo")
    assert made.is_vit
    assert (made.preprocessing.size, made.image_depth) == (48, 5)
    names = ["tiger", "red car"]
    torch.testing.assert_close(
        made.zero_shot(names, "a photo of a {}."), photo.zero_shot(names, "a photo of a {}."), atol=1e-5, rtol=0
    )


def test_a_student_learns_labels_and_comes_nearer_to_its_teacher(pool: Pool, tmp_path: Path, drawn) -> None:
    pocket, teacher = (
        open_clip.create_model_from_pretrained(f"local-dir:{MODELS[name]}", precision="fp32", return_transform=False)
        for name in ("pocket", "pocket-photo")
    )
    twin.extract(pool, twin.Extractor(None, None), tmp_path, (None,), quiet)
    lesson = twin.Lesson(pool, tmp_path, teacher.eval(), replace(PLAN, rate=1e-3, minutes=15 / 60))
    model = twin.begin(pocket, teacher, lesson)
    text = model.text_projection.clone()
    with torch.no_grad():
        model.visual.proj.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))

    def measured() -> np.ndarray:
        dice, normal = random.Random(3), torch.Generator().manual_seed(3)
        with torch.no_grad():
            pixels, labels, targets = lesson.batch(dice, normal)
            images = F.normalize(model.eval().visual(pixels), dim=1)
            found = twin.losses(images, labels, targets, lesson, model.logit_scale.exp(), dice)
        return np.array([part.item() for part in found])

    before = measured()
    with pytest.MonkeyPatch.context() as patch:
        ticks = itertools.count()
        patch.setattr(twin.time, "monotonic", lambda: float(next(ticks)))
        twin.train(model, lesson, tmp_path, quiet)
    assert (measured() < before).all()
    assert torch.equal(model.text_projection, text), "the words stay where they are"


def test_crops_are_of_the_picture_and_differ() -> None:
    pixels = torch.rand(4, 3, 48, 48)
    first, other = (twin.disturb(pixels, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert first.shape == pixels.shape
    assert 0 <= first.min() < first.max() <= 1
    assert not torch.equal(first, other)

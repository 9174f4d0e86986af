"""Golden case: images turned into tensors as the public code turns them, by OpenAI's transform and the trainer's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image

from calprompt.clip.preprocessing import Preprocessing

TOLERANCE = 1e-5  # float32 of about 2; one of the 256 levels is 0.015


def check(directory: Path, tensors: dict[str, torch.Tensor], entry: dict[str, Any]) -> None:
    """Every image that the entry lists, against `image<i>/clip` and `image<i>/trainer_test` (where it differs)."""
    assert entry["images"], "the golden entry lists no image"
    for number, listed in enumerate(entry["images"]):
        clip = tensors[f"image{number}/clip"]  # [3, size, size]
        trainer = tensors.get(f"image{number}/trainer_test", clip)
        preprocessing = Preprocessing(clip.shape[-1])
        with Image.open(directory / listed["file"]) as image:
            for rgb, expected in (("last", clip), ("first", trainer)):
                got = preprocessing.evaluation(rgb=rgb)(image)
                assert got.shape == expected.shape, listed["file"]
                assert (got - expected).abs().max() <= TOLERANCE, (listed["file"], rgb)
        assert torch.equal(clip, trainer) == listed["clip_equals_trainer_test"], listed["file"]

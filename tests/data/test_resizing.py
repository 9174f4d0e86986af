"""The evaluation view without torch is that of torchvision, to the bit."""

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from calprompt.kernel import resize_and_crop

SIZES = [(40, 30), (31, 77), (64, 64), (33, 32), (200, 3), (1, 1), (223, 225)]


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", SIZES)
def test_against_torchvision(size: tuple[int, int], interpolation: str) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(levels)
    mode = InterpolationMode(interpolation)
    for target in (15, 32):
        shortest = functional.center_crop(functional.resize(image, target, mode), [target, target])
        squashed = functional.resize(image, [target, target], mode)
        assert np.array_equal(np.asarray(resize_and_crop(image, target, interpolation)), np.asarray(shortest))
        assert np.array_equal(np.asarray(resize_and_crop(image, target, interpolation, "squash")), np.asarray(squashed))

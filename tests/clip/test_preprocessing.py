"""Images become tensors as the references make them, and random views depend on their generator alone."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.transform import image_transform
from PIL import Image
from safetensors.torch import load_file
from torchvision import transforms
from torchvision.transforms import functional

from calprompt.clip.preprocessing import Preprocessing, random_crop
from calprompt.errors import CalpromptError

GOLDEN = Path(__file__).parents[1] / "golden"
MODES = ["RGB", "L", "P", "RGBA", "LA", "1", "CMYK"]


def picture(mode: str = "RGB", width: int = 50, height: int = 37) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA").convert("RGB" if mode == "P" else mode).convert(mode)


def test_golden_preprocess() -> None:
    spec = importlib.util.spec_from_file_location("preprocess_case", GOLDEN / "preprocess_case.py")
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    entries = json.loads((GOLDEN / "data" / "manifest.json").read_text())["standalone"]
    entry = next(entry for entry in entries if entry["name"] == "preprocess")
    case.check(GOLDEN / "data", load_file(GOLDEN / "data" / entry["file"]), entry)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("resize_mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_evaluation_against_open_clip(mode: str, resize_mode: str, interpolation: str) -> None:
    preprocessing = Preprocessing(32, interpolation=interpolation, resize_mode=resize_mode)
    reference = image_transform(32, is_train=False, resize_mode=resize_mode, interpolation=interpolation)
    assert torch.equal(preprocessing.evaluation(rgb="last")(picture(mode)), reference(picture(mode)))


@pytest.mark.parametrize("size", [(40, 36), (32, 32), (31, 97), (200, 64), (33, 34), (1, 5), (113, 71)])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK"])
@pytest.mark.parametrize("options", [{}, {"interpolation": "bilinear"}, {"resize_mode": "squash"}])
def test_pixels_equal_the_public_transforms(options: dict[str, str], mode: str, size: tuple[int, int]) -> None:
    noise = np.random.default_rng(size).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image, preprocessing = Image.fromarray(noise).convert(mode), Preprocessing(32, **options)
    settings = {"resize_mode": "shortest", "interpolation": "bicubic"} | options
    reference = image_transform(32, is_train=False, **settings)
    assert torch.equal(preprocessing.evaluation()(image), reference(image.convert("RGB")))
    levels = preprocessing.training(torch.Generator().manual_seed(1)).pixels(image)
    view = preprocessing.training(torch.Generator().manual_seed(1)).picture(image)
    expected = functional.normalize(functional.to_tensor(view), preprocessing.mean, preprocessing.std)
    assert torch.equal(preprocessing.normalise(levels[None])[0], expected)


def test_order_of_conversion_matters_for_palettes_and_transparency_only() -> None:
    preprocessing = Preprocessing(24)
    for mode, same in {"RGB": True, "L": True, "P": False, "RGBA": False}.items():
        first, last = (preprocessing.evaluation(rgb=rgb)(picture(mode)) for rgb in ("first", "last"))
        assert torch.equal(first, last) == same, mode


@pytest.mark.parametrize(("width", "height"), [(32, 32), (1, 1), (1, 90), (90, 1), (31, 33), (300, 7)])
def test_any_shape_fits(width: int, height: int) -> None:
    for resize_mode in ("shortest", "squash"):
        preprocessing = Preprocessing(32, resize_mode=resize_mode)
        image = picture("RGB", width, height)
        for transform in (preprocessing.evaluation(), preprocessing.training(torch.Generator().manual_seed(0))):
            tensor = transform(image)
            assert tensor.shape == (3, 32, 32)
            assert tensor.dtype == torch.float32
            assert tensor.isfinite().all()


@pytest.mark.parametrize(("width", "height"), [(50, 37), (5, 200), (200, 5), (64, 64)])
def test_training_against_torchvision(width: int, height: int) -> None:
    preprocessing = Preprocessing(16)
    reference = transforms.Compose(
        [
            transforms.RandomResizedCrop(
                16, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation=transforms.InterpolationMode.BICUBIC
            ),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(preprocessing.mean, preprocessing.std),
        ]
    )
    image = picture("RGB", width, height)
    view = preprocessing.training(torch.Generator().manual_seed(3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = [reference(image) for _ in range(20)]
    for each in expected:
        assert torch.equal(view(image), each)


def test_training_leaves_global_randomness_alone_and_repeats() -> None:
    preprocessing, image = Preprocessing(16), picture("P")
    before = torch.get_rng_state()
    first = [preprocessing.training(torch.Generator().manual_seed(5))(image) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again = preprocessing.training(torch.Generator().manual_seed(5))(image)
    assert torch.equal(first[0], first[1])
    assert torch.equal(first[0], again)
    assert not torch.equal(again, preprocessing.training(torch.Generator().manual_seed(6))(image))


def test_crops_keep_the_requested_share() -> None:
    for smallest in (0.3, 0.7, 1.0):
        generator = torch.Generator().manual_seed(0)
        crops = [random_crop(100, 100, generator, smallest) for _ in range(200)]
        assert min(height * width for _, _, height, width in crops) > 100 * 100 * smallest * 0.97
    with pytest.raises(CalpromptError, match="crop must be a share of the image's area"):
        Preprocessing(32, crop=0.0)


def test_random_crops_lie_inside_and_have_the_promised_area_and_ratio() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        top, left, height, width = random_crop(120, 160, generator)
        assert top >= 0
        assert left >= 0
        assert top + height <= 120
        assert left + width <= 160
        assert 0.07 <= height * width / (120 * 160) <= 1.0
        assert 0.72 <= width / height <= 1.38


def test_plain_dictionary_and_pickle() -> None:
    preprocessing = Preprocessing(48, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "bilinear", "squash")
    assert Preprocessing.from_dict(json.loads(json.dumps(preprocessing.to_dict()))) == preprocessing
    transform = pickle.loads(pickle.dumps(preprocessing.evaluation()))
    assert torch.equal(transform(picture()), preprocessing.evaluation()(picture()))
    assert hash(preprocessing) == hash(Preprocessing.from_dict(preprocessing.to_dict()))


def test_from_open_clip() -> None:
    row = {"mean": (0.5, 0.5, 0.5), "std": [0.5, 0.5, 0.5], "interpolation": "bilinear", "resize_mode": "squash"}
    assert Preprocessing.from_open_clip(row, 32) == Preprocessing(32, (0.5,) * 3, (0.5,) * 3, "bilinear", "squash")
    assert Preprocessing.from_open_clip({"interpolation": "random", "size": [32, 32]}, 32) == Preprocessing(32)
    with pytest.raises(CalpromptError, match=r"preprocess_cfg.size is 64, but the image tower takes 32"):
        Preprocessing.from_open_clip({"size": 64}, 32)
    with pytest.raises(CalpromptError, match="longest"):
        Preprocessing.from_open_clip({"resize_mode": "longest"}, 32)


def test_from_huggingface() -> None:
    new = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "resample": 3}
    old = {"size": 32, "crop_size": 32, "do_center_crop": True, "image_mean": [0.1, 0.2, 0.3], "resample": 2}
    squash = {"size": {"height": 32, "width": 32}, "do_center_crop": False}
    assert Preprocessing.from_huggingface(new, 32) == Preprocessing(32)
    assert Preprocessing.from_huggingface(old, 32) == Preprocessing(32, (0.1, 0.2, 0.3), interpolation="bilinear")
    assert Preprocessing.from_huggingface(squash, 32).resize_mode == "squash"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"size": {"shortest_edge": 36}}, "size"),
        ({"crop_size": {"height": 32, "width": 30}}, "crop_size"),
        ({"do_normalize": False}, "do_normalize"),
        ({"do_resize": False}, "do_resize"),
        ({"resample": 0}, "resample"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
    ],
)
def test_unsupported_huggingface_preprocessing_is_named(config: dict, field: str) -> None:
    with pytest.raises(CalpromptError, match=field):
        Preprocessing.from_huggingface(config, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size"),
        ({"size": 32.0}, "size"),
        ({"size": True}, "size"),
        ({"size": 32, "mean": (1, 2)}, "mean"),
        ({"size": 32, "std": (0.1, 0.0, 0.1)}, "std must be positive"),
        ({"size": 32, "interpolation": "bicubik"}, "Did you mean 'bicubic'"),
        ({"size": 32, "resize_mode": "short"}, "Did you mean 'shortest'"),
        ({"size": 32, "meen": 1}, "Did you mean 'mean'"),
        ({"mean": (0, 0, 0)}, "needs 'size'"),
    ],
)
def test_invalid_input_is_reported(arguments: dict, message: str) -> None:
    with pytest.raises(CalpromptError, match=message):
        Preprocessing.from_dict(arguments)


def test_invalid_calls_are_reported() -> None:
    with pytest.raises(CalpromptError, match="rgb"):
        Preprocessing(32).evaluation(rgb="second")
    with pytest.raises(CalpromptError, match="expected a PIL image, got str"):
        Preprocessing(32).evaluation()("cat.png")  # type: ignore[arg-type]

"""Tiny CLIP models with random weights, tuners on them and images for them, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from open_clip.model import CLIP
from torch import Tensor

from calprompt import tuners
from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.tuners import Tuner, create

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def tiny_clip(
    *, tower: str = "vit", seed: int = 0, width: int = 64, layers: int = 3, image_width: int = 48, embed: int = 32
) -> CLIP:
    """32 pixels; every weight and bias is random, so that a forgotten one shows."""
    vision = {
        "vit": {"image_size": 32, "width": image_width, "head_width": 16, "patch_size": 8, "layers": layers},
        "resnet": {"image_size": 32, "width": 8, "head_width": 16, "layers": (1, 1, 1, 1)},
        "timm": {"image_size": 32, "timm_model_name": "test_convnext", "timm_pool": "", "timm_proj": "linear"},
    }[tower]
    text = {"width": width, "heads": 4, "layers": layers}
    model = CLIP(embed, vision, text, quick_gelu=True, init_logit_scale=3.0)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name == "logit_scale":
            continue
        noise = torch.empty_like(parameter).normal_(0, 0.5 * parameter.shape[-1] ** -0.5, generator=generator)
        around_one = parameter.ndim == 1 and name.endswith("weight")
        parameter.data.copy_(noise + 1 if around_one else noise)
    return model.eval()


@cache
def tiny_backbone(*, dtype: torch.dtype = torch.float32, **shape: object) -> Backbone:
    model = tiny_clip(**shape).to(dtype)  # type: ignore[arg-type]
    return Backbone(model, preprocessing=Preprocessing(32, MEAN, STD), name="tiny", fingerprint="tiny")


BACKBONES = {tower: tiny_backbone(tower=tower) for tower in ("vit", "resnet", "timm")}
BASE = ["annual crop land", "siamese", "2012 Tesla Model S Sedan", "pizza", "polka_dotted"]
NOVEL = ["crème brûlée", "american_pit_bull_terrier", "tench"]
LEARNED = [name for name in tuners.available() if name != "zero-shot"]
AT_ONCE = ("tip-adapter",)  # nothing is trained step by step
SMALL: dict[str, dict[str, Any]] = {
    "clip-adapter": {"ratio": 0.8},
    "coop": {"context": 4},
    "proda": {"prompts": 8, "prompt_batch": 4, "context": 4},
    "promptsrc": {"teacher": 60, "average": (3.0, 1.0)},
}


def build(name: str, backbone: Backbone = BACKBONES["vit"], seed: int = 0, classes: list[str] = BASE) -> Tuner:
    """A tuner of a few small prompts; one that keeps training images has as many as there are classes."""
    tuner = create(name, backbone, classes, seed=seed, **SMALL.get(name, {}))
    if not tuner.needs_pixels and backbone.device.type != "meta":
        features = torch.randn(1, len(classes), backbone.embed_dim, generator=torch.Generator().manual_seed(seed))
        tuner.begin(features, torch.arange(len(classes)), {"another": 1.0})
    return tuner


@dataclass
class Images:
    """A training set of random images, as pixels or as frozen features."""

    pixels: Tensor
    features: Tensor
    labels: Tensor
    as_pixels: bool
    views: int = 1

    def images(self, indices: Tensor, epoch: int) -> Tensor:
        return self.pixels[indices] if self.as_pixels else self.features[indices]

    def frozen(self, indices: Tensor, epoch: int) -> Tensor | None:
        return self.features[indices] if self.as_pixels else None


def images(tuner: Tuner, n: int = 12) -> Images:
    pixels = torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    labels = torch.arange(n) % len(BASE)
    with torch.no_grad():
        return Images(pixels, tuner.backbone.encode_image(pixels), labels, tuner.needs_pixels)


def everything(data: Images) -> Tensor:
    return data.images(torch.arange(len(data.labels)), 1)

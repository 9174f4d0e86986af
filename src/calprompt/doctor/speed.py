"""How fast this machine is: the pocket measured, a ViT-B/16 estimated from two of its blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from calprompt import pocket
from calprompt.class_names import fill_template
from calprompt.clip.architecture import Architecture
from calprompt.clip.image import encode_image
from calprompt.doctor.finding import OK, Finding
from calprompt.doctor.models import load_embedded

SECONDS = 0.6  # for each measurement
AT_ONCE = 64  # images, or sentences
VIT_B_16 = Architecture(
    embed_dim=512,
    quick_gelu=True,
    image_size=224,
    patch_size=16,
    vision_width=768,
    vision_layers=12,
    vision_heads=12,
    vision_mlp=3072,
    context_length=77,
    vocab_size=49408,
    text_width=512,
    text_layers=12,
    text_heads=8,
    text_mlp=2048,
)
PRODUCTS = {"patches": 0.116, "block": 1.449, "last block": 0.239}  # billions, for an image


@torch.no_grad()
def check_speed() -> Iterator[Finding]:
    """Images and sentences per second, in about two seconds."""
    backbone = load_embedded("pocket")
    size = backbone.preprocessing.size
    images = torch.randn(AT_ONCE, 3, size, size)
    names = pocket.sheet("objects").class_names[:AT_ONCE]
    sentences = [fill_template("a picture of a {}.", name) for name in names]
    with backbone.limited_threads():  # one, as when image features are computed: each core works on a batch of its own
        pace = AT_ONCE * per_second(lambda: backbone.encode_image(images))
        yield Finding("pocket, images", OK, f"{pace:,.0f} images per second on one core (measured)")
        pace = len(sentences) * per_second(lambda: backbone.encode_strings(sentences, warn=False))
        yield Finding("pocket, texts", OK, f"{pace:,.0f} class names per second on one core (measured)")
        pace = estimated_images_per_second()
    shown = f"{pace:,.0f}" if pace >= 10 else f"{pace:.1f}"
    yield Finding(
        "ViT-B/16, images", OK, f"about {shown} images per second on one core (estimated from two of its blocks)"
    )


def per_second(call: Callable[[], object], seconds: float = SECONDS) -> float:
    """How often a call can be made in a second: the median, since other programs come and go."""
    call()  # the first takes longer
    times: list[float] = []
    while sum(times) < seconds:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1 / sorted(times)[len(times) // 2]


@torch.no_grad()
def estimated_images_per_second(images: int = 2) -> float:
    """What a ViT-B/16 would do: two of its blocks are run, with random weights, and the others are calculated.

    The last block is cheaper than the others, since only the class token is read out of it.
    """
    layers = VIT_B_16.vision_layers
    assert isinstance(layers, int)
    tower = replace(VIT_B_16, vision_layers=2, text_layers=1).build().visual.to_empty(device="cpu").eval()
    for weight in tower.parameters():
        weight.normal_(std=0.02)
    pixels = torch.randn(images, 3, VIT_B_16.image_size, VIT_B_16.image_size)
    two, all_others = sum(PRODUCTS.values()), (layers - 2) * PRODUCTS["block"]
    return images * per_second(lambda: encode_image(tower, pixels)) * two / (two + all_others)

"""The image encoder: open_clip's features without prompts, the plain path's with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.plain import encode_image_plain
from calprompt.clip.prompts import VisualPrompts
from calprompt.errors import CalpromptError
from tiny import tiny_backbone

VIT, RESNET, TIMM = tiny_backbone(), tiny_backbone(tower="resnet"), tiny_backbone(tower="timm")


def images(n: int = 3) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backbone", [VIT, RESNET, TIMM], ids=["vit", "resnet", "timm"])
def test_without_prompts_equals_open_clip(backbone) -> None:
    torch.testing.assert_close(
        backbone.encode_image(images()), backbone.model.encode_image(images()), rtol=1e-5, atol=1e-5
    )


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(0, 2), st.integers(1, 4), st.integers(0, 2**31))
def test_with_prompts_equals_plain_path_with_gradients(n: int, depth: int, batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    drawn = [(torch.randn(n, 48, generator=generator) * 0.5).requires_grad_() for _ in range(depth + 1)]
    prompts = VisualPrompts(drawn[0], drawn[1:])
    results = [VIT.encode_image(images(batch), prompts), encode_image_plain(VIT.model.visual, images(batch), prompts)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    weights = torch.randn(results[0].shape, generator=generator)
    gradients = [torch.autograd.grad((features * weights).sum(), drawn) for features in results]
    for ours, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("backbone", "tower"), [(RESNET, "a residual network"), (TIMM, r"timm's \(test_convnext\)")])
def test_other_towers_refuse_visual_prompts(backbone, tower: str) -> None:
    with pytest.raises(CalpromptError, match="visual prompts need CLIP's vision transformer"):
        backbone.encode_image(images(), VisualPrompts(torch.zeros(2, 48)))
    with pytest.raises(CalpromptError, match=f"MaPLe needs CLIP's vision transformer.*{tower}"):
        backbone.require_vit("MaPLe")


def test_half_precision_gives_float32_features() -> None:
    assert tiny_backbone(dtype=torch.bfloat16).encode_image(images()).dtype == torch.float32
    assert tiny_backbone(dtype=torch.bfloat16, tower="resnet").encode_image(images()).dtype == torch.float32
    assert tiny_backbone(dtype=torch.bfloat16, tower="timm").encode_image(images()).dtype == torch.float32
    assert tiny_backbone(dtype=torch.float64).encode_image(images()).dtype == torch.float64

"""The image encoder: open_clip's features without prompts, the plain path's with them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calprompt.clip import VisualPrompts
from calprompt.clip.plain import encode_image_plain
from calprompt.errors import CalpromptError
from tiny import tiny_backbone

VIT, RESNET = tiny_backbone(), tiny_backbone(vit=False)


def images(n: int = 3) -> Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("backbone", [VIT, RESNET], ids=["vit", "resnet"])
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


def test_residual_network_refuses_visual_prompts() -> None:
    with pytest.raises(CalpromptError, match=r"visual prompts need a vision transformer.*residual network"):
        RESNET.encode_image(images(), VisualPrompts(torch.zeros(2, 48)))
    with pytest.raises(CalpromptError, match="needs a vision transformer"):
        RESNET.require_vit("MaPLe")


def test_half_precision_gives_float32_features() -> None:
    assert tiny_backbone(dtype=torch.bfloat16).encode_image(images()).dtype == torch.float32
    assert tiny_backbone(dtype=torch.bfloat16, vit=False).encode_image(images()).dtype == torch.float32
    assert tiny_backbone(dtype=torch.float64).encode_image(images()).dtype == torch.float64

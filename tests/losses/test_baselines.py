"""Losses the paper compares with: values by hand or from torch, gradients in float64, and what must always hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calprompt.errors import CalpromptError
from calprompt.losses import (
    focal_loss,
    margin_label_smoothing,
    orthogonality_penalty,
    range_penalty,
    rescale_to_range,
    similarity_gap,
    smoothed_cross_entropy,
    text_l1,
    text_l2,
    text_moment_matching,
    zero_shot_normalised_cross_entropy,
)

sizes = st.integers(2, 8)
seeds = st.integers(0, 2**31)
few = settings(max_examples=30)

LOGIT_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {  # of logits, labels, zero-shot logits
    "mbls": lambda z, y, z0: margin_label_smoothing(z, margin=0.5),
    "zs_norm": zero_shot_normalised_cross_entropy,
    "penalty": lambda z, y, z0: range_penalty(z, z0),
    "label_smoothing": lambda z, y, z0: smoothed_cross_entropy(z, y, 0.2),
    "focal": lambda z, y, z0: focal_loss(z, y, 1.5),
}
TEXT_LOSSES = {
    "l1": text_l1,
    "l2": text_l2,
    "similarity": similarity_gap,
    "moments": text_moment_matching,
}
logit_losses = pytest.mark.parametrize("loss", LOGIT_LOSSES.values(), ids=LOGIT_LOSSES)
text_losses = pytest.mark.parametrize("loss", TEXT_LOSSES.values(), ids=TEXT_LOSSES)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(seed: int, *shape: int) -> Tensor:
    return F.normalize(normal(seed, *shape), dim=-1)


def labels(seed: int, n: int, classes: int) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


@logit_losses
class TestEveryLogitLoss:
    @few
    @given(seed=seeds, batch=sizes, classes=sizes)
    def test_gradient(self, loss: Callable[..., Tensor], seed: int, batch: int, classes: int) -> None:
        y, z0 = labels(seed, batch, classes), normal(seed + 1, batch, classes)
        torch.autograd.gradcheck(lambda z: loss(z, y, z0), normal(seed, batch, classes).requires_grad_())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
        z, y, z0 = (
            (20 * normal(0, 8, 10)).to(dtype).requires_grad_(),
            labels(0, 8, 10),
            (20 * normal(1, 8, 10)).to(dtype),
        )
        value = loss(z, y, z0)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(loss(z.double(), y, z0.double()).item(), rel=1e-5)
        value.backward()
        assert z.grad.dtype == dtype

    def test_far_logits_stay_finite(self, loss: Callable[..., Tensor]) -> None:
        z = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 1e4, 0.0]], requires_grad=True)
        for y in (torch.tensor([0, 1]), torch.tensor([2, 0])):
            value = loss(z, y, torch.tensor([[30.0, 20.0, 10.0], [25.0, 26.0, 24.0]]))
            (gradient,) = torch.autograd.grad(value, z)
            assert bool(torch.isfinite(value))
            assert bool(torch.isfinite(gradient).all())

    def test_zero_shot_side_gets_no_gradient(self, loss: Callable[..., Tensor]) -> None:
        z, z0 = normal(0, 4, 5).requires_grad_(), normal(1, 4, 5).requires_grad_()
        loss(z, labels(0, 4, 5), z0).backward()
        assert z0.grad is None


@text_losses
class TestEveryTextLoss:
    @few
    @given(seed=seeds, classes=sizes, dimension=sizes)
    def test_gradient(self, loss: Callable[..., Tensor], seed: int, classes: int, dimension: int) -> None:
        frozen = features(seed + 1, classes, dimension)
        torch.autograd.gradcheck(lambda t: loss(t, frozen), features(seed, classes, dimension).requires_grad_())

    def test_unchanged_features_have_zero_loss_and_gradient(self, loss: Callable[..., Tensor]) -> None:
        frozen = features(0, 6, 8)
        tuned = frozen.clone().requires_grad_()
        value = loss(tuned, frozen)
        value.backward()
        assert value.item() == 0
        assert float(tuned.grad.abs().max()) < 1e-15

    def test_text_of_each_image_is_averaged(self, loss: Callable[..., Tensor]) -> None:
        tuned, frozen = features(0, 4, 6, 8), features(1, 6, 8)
        each = torch.stack([loss(one, frozen) for one in tuned])
        assert loss(tuned, frozen).item() == pytest.approx(each.mean().item())

    def test_frozen_side_gets_no_gradient(self, loss: Callable[..., Tensor]) -> None:
        tuned, frozen = features(0, 5, 8).requires_grad_(), features(1, 5, 8).requires_grad_()
        loss(tuned, frozen).backward()
        assert tuned.grad is not None
        assert frozen.grad is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
        tuned, frozen = features(0, 50, 512).to(dtype), features(1, 50, 512).to(dtype)
        value = loss(tuned, frozen)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(loss(tuned.double(), frozen.double()).item(), rel=1e-5, abs=1e-7)

    def test_different_classes_are_refused(self, loss: Callable[..., Tensor]) -> None:
        with pytest.raises(CalpromptError, match=r"\(4, 8\) and \(5, 8\)"):
            loss(torch.zeros(4, 8), torch.zeros(5, 8))


class TestMarginLabelSmoothing:
    @given(seeds, sizes, sizes, st.floats(-50, 50))
    def test_shift_of_a_row_changes_nothing(self, seed: int, batch: int, classes: int, shift: float) -> None:
        z = normal(seed, batch, classes)
        moved = margin_label_smoothing(z + shift, margin=0.3)
        assert moved.item() == pytest.approx(margin_label_smoothing(z, margin=0.3).item(), abs=1e-12)

    @given(seeds, sizes, sizes)
    def test_nothing_is_asked_within_the_margin(self, seed: int, batch: int, classes: int) -> None:
        z = normal(seed, batch, classes).requires_grad_()
        widest = float((z.amax(dim=1) - z.amin(dim=1)).max().detach())
        value = margin_label_smoothing(z, margin=widest)
        value.backward()
        assert value.item() == 0
        assert float(z.grad.abs().max()) == 0
        assert margin_label_smoothing(z, margin=0.9 * widest).item() > 0

    def test_tie_sends_the_gradient_to_one_maximum(self) -> None:
        z = torch.tensor([[5.0, 5.0, 0.0]], requires_grad=True)
        margin_label_smoothing(z, margin=1).backward()
        assert sorted(z.grad[0].tolist()) == pytest.approx([-1 / 3, 0, 1 / 3])


class TestZeroShotNorm:
    @given(seeds, sizes, sizes, st.floats(0.01, 100), st.floats(-50, 50))
    def test_affine_maps_of_the_logits_change_nothing(
        self, seed: int, batch: int, classes: int, a: float, b: float
    ) -> None:
        z, z0, y = normal(seed, batch, classes), normal(seed + 1, batch, classes), labels(seed, batch, classes)
        moved = zero_shot_normalised_cross_entropy(a * z + b, y, z0)
        assert moved.item() == pytest.approx(zero_shot_normalised_cross_entropy(z, y, z0).item(), abs=1e-9)

    @given(seeds, sizes, sizes)
    def test_is_the_formula_with_the_zero_shot_range(self, seed: int, batch: int, classes: int) -> None:
        z, z0 = normal(seed, batch, classes), 5 * normal(seed + 1, batch, classes) + 20
        ours = rescale_to_range(z, z0)
        for row, from_, to in zip(ours, z, z0, strict=True):
            written = (from_ - from_.min()) / (from_.max() - from_.min()) * (to.max() - to.min()) + to.min()
            torch.testing.assert_close(row, written)
        assert torch.equal(ours.amax(dim=1), z0.amax(dim=1))
        assert torch.equal(ours.amin(dim=1), z0.amin(dim=1))

    def test_a_row_without_a_range_is_refused(self) -> None:
        z = torch.tensor([[1.0, 2.0], [3.0, 3.0]])
        with pytest.raises(CalpromptError, match="image 1 has the same logit for every class"):
            rescale_to_range(z, torch.eye(2))
        loss = zero_shot_normalised_cross_entropy(z, torch.tensor([0, 1]), torch.eye(2))
        assert loss.isnan(), "training reports it as a loss that is not finite, without looking at every step"

    def test_other_images_are_refused(self) -> None:
        with pytest.raises(CalpromptError, match=r"same images and classes, got \(2, 3\) and \(2, 4\)"):
            range_penalty(torch.zeros(2, 3), torch.zeros(2, 4))


class TestPenalty:
    @given(seeds, sizes, sizes)
    def test_within_the_zero_shot_range_the_penalty_is_zero(self, seed: int, batch: int, classes: int) -> None:
        z0 = normal(seed, batch, classes)
        z = torch.lerp(
            z0.amin(dim=1, keepdim=True), z0.amax(dim=1, keepdim=True), normal(seed, batch, classes).sigmoid()
        )
        assert range_penalty(z, z0).item() == 0

    @given(seeds, sizes, sizes, st.floats(0.1, 10))
    def test_outside_the_zero_shot_range_the_penalty_is_the_distance(
        self, seed: int, batch: int, classes: int, by: float
    ) -> None:
        z0 = normal(seed, batch, classes)
        above = (z0.amax(dim=1, keepdim=True) + by).expand(batch, classes)
        below = (z0.amin(dim=1, keepdim=True) - by).expand(batch, classes)
        assert range_penalty(above, z0).item() == pytest.approx(by)
        assert range_penalty(below, z0).item() == pytest.approx(by)


class TestBetweenClasses:
    @given(seeds, sizes, sizes)
    def test_similarity_is_the_formula(self, seed: int, classes: int, dimension: int) -> None:
        tuned, frozen = normal(seed, classes, dimension), normal(seed + 1, classes, dimension)

        def mean(x: Tensor) -> float:
            pairs = [float(x[i] @ x[j]) for i in range(classes) for j in range(classes) if i != j]
            return sum(pairs) / len(pairs)

        assert similarity_gap(tuned, frozen).item() == pytest.approx(abs(mean(tuned) - mean(frozen)), abs=1e-12)

    @given(seeds, sizes, sizes)
    def test_otpt_is_the_squared_distance_to_orthogonal_classes(self, seed: int, classes: int, dimension: int) -> None:
        tuned = F.normalize(normal(seed, classes, dimension), dim=-1)
        distance = float((tuned @ tuned.T - torch.eye(classes)).square().sum())
        expected = distance / (classes * (classes - 1))
        assert orthogonality_penalty(tuned).item() == pytest.approx(expected, abs=1e-12)
        assert orthogonality_penalty(torch.eye(classes)).item() == 0

    def test_only_otpt_pushes_classes_apart(self) -> None:
        """The other one is 0 where the frozen classes are, and rises whichever way they go."""
        frozen, apart = F.normalize(normal(0, 4, 8) + 2, dim=-1), torch.eye(4, 8, dtype=torch.float64)
        assert orthogonality_penalty(apart) < orthogonality_penalty(frozen)
        assert similarity_gap(apart, frozen) > similarity_gap(frozen, frozen) == 0

    def test_one_class_is_refused(self) -> None:
        with pytest.raises(CalpromptError, match="at least two of them, got 1"):
            similarity_gap(torch.ones(1, 4), torch.ones(1, 4))


class TestLabelSmoothingAndFocal:
    @given(seeds, sizes, sizes, st.floats(0, 1))
    def test_label_smoothing_is_cross_entropy_to_soft_targets(
        self, seed: int, batch: int, classes: int, epsilon: float
    ) -> None:
        z, y = 5 * normal(seed, batch, classes), labels(seed, batch, classes)
        target = (1 - epsilon) * F.one_hot(y, classes).double() + epsilon / classes
        written = -(target * z.log_softmax(dim=1)).sum(dim=1).mean()
        assert smoothed_cross_entropy(z, y, epsilon).item() == pytest.approx(written.item(), abs=1e-12)

    @given(seeds, sizes, sizes, st.floats(0, 5))
    def test_focal_is_weighted_cross_entropy(self, seed: int, batch: int, classes: int, gamma: float) -> None:
        z, y = normal(seed, batch, classes), labels(seed, batch, classes)
        p = z.softmax(dim=1).gather(1, y[:, None])[:, 0]
        assert focal_loss(z, y, gamma).item() == pytest.approx(float(-((1 - p) ** gamma * p.log()).mean()), abs=1e-12)

    @given(seeds, sizes, sizes)
    def test_focal_without_focus_is_cross_entropy(self, seed: int, batch: int, classes: int) -> None:
        z, y = 30 * normal(seed, batch, classes), labels(seed, batch, classes)
        assert focal_loss(z, y, 0.0).item() == pytest.approx(F.cross_entropy(z, y).item(), abs=1e-12)

    @pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
    @pytest.mark.parametrize("gap", [-30.0, -2.0, 10.0, 20.0, 30.0])
    def test_focal_of_what_is_sure_keeps_its_digits(self, gap: float, gamma: float) -> None:
        """Where 1 - p or log p in float32 are 0, and the power of 0 has no derivative."""
        p, q = 1 / (1 + math.exp(-gap)), 1 / (1 + math.exp(gap))  # of the true class and of the other
        log_p = -math.log1p(math.exp(-gap))
        z = torch.tensor([[gap, 0.0]], requires_grad=True)
        loss = focal_loss(z, torch.tensor([0]), gamma)
        loss.backward()
        assert loss.item() == pytest.approx(-(q**gamma) * log_p, rel=1e-5)
        slope = gamma * q**gamma * p * log_p - q**gamma * q
        assert z.grad[0].tolist() == pytest.approx([slope, -slope], rel=1e-5)

    def test_one_class_is_refused(self) -> None:
        with pytest.raises(CalpromptError, match=r"two or more classes, got \(3, 1\)"):
            focal_loss(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))

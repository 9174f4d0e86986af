"""The two losses of TCPT: values by hand, gradients in float64, and what must always hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from calprompt.errors import CalpromptError
from calprompt.losses import margins, mean_variance_margin, text_moment_matching
from calprompt.losses.tcpt import covariance_gap_full, covariance_gap_gram

sizes = st.integers(2, 12)
seeds = st.integers(0, 2**31)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def features(seed: int, *shape: int) -> Tensor:
    return torch.nn.functional.normalize(normal(seed, *shape), dim=-1)


def labels(seed: int, n: int, classes: int) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


def written_out(tuned: Tensor, frozen: Tensor) -> Tensor:
    """The paper's formula, entry by entry."""

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(dim=0)
        return mean, sum(torch.outer(row - mean, row - mean) for row in x) / len(x)

    (m, s), (m0, s0) = moments(tuned), moments(frozen)
    return (m - m0).square().sum() + (s - s0).square().sum()


class TestMargin:
    @given(seeds, sizes, sizes)
    def test_gradient(self, seed: int, batch: int, classes: int) -> None:
        z = normal(seed, batch, classes).requires_grad_()
        torch.autograd.gradcheck(lambda z: mean_variance_margin(z, labels(seed, batch, classes)), z)

    @given(seeds, sizes, sizes, st.floats(-50, 50))
    def test_shift_of_a_row_changes_nothing(self, seed: int, batch: int, classes: int, shift: float) -> None:
        z, y = normal(seed, batch, classes), labels(seed, batch, classes)
        assert mean_variance_margin(z + shift, y) == pytest.approx(float(mean_variance_margin(z, y)), abs=1e-9)

    @given(seeds, sizes, sizes)
    def test_order_of_images_and_classes_does_not_matter(self, seed: int, batch: int, classes: int) -> None:
        z, y = normal(seed, batch, classes), labels(seed, batch, classes)
        rows = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
        columns = torch.randperm(classes, generator=torch.Generator().manual_seed(seed + 1))
        moved = mean_variance_margin(z[rows][:, columns], columns.argsort()[y[rows]])
        assert moved == pytest.approx(float(mean_variance_margin(z, y)), abs=1e-12)

    def test_by_hand(self) -> None:
        z = torch.tensor([[5.0, 3.0, 1.0], [0.0, 4.0, 6.0]])
        assert margins(z, torch.tensor([0, 1])).tolist() == [2.0, -2.0]
        assert mean_variance_margin(z, torch.tensor([0, 1]), alpha=0.5, beta=0.25) == pytest.approx(0.25 * 4)

    def test_one_image_has_no_variance(self) -> None:
        z, y = normal(0, 1, 5).requires_grad_(), torch.tensor([2])
        value = mean_variance_margin(z, y)
        assert value.item() == pytest.approx(-0.1 * margins(z, y).item())
        value.backward()
        assert bool(torch.isfinite(z.grad).all())

    def test_tie_sends_the_gradient_to_one_runner_up(self) -> None:
        z = torch.tensor([[1.0, 3.0, 3.0, 0.0]], requires_grad=True)
        margins(z, torch.tensor([0])).sum().backward()
        assert z.grad.sum() == 0
        assert sorted(z.grad[0].tolist()) == [-1.0, 0.0, 0.0, 1.0]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype: torch.dtype) -> None:
        z, y = (normal(0, 8, 10) * 20).to(dtype).requires_grad_(), labels(0, 8, 10)
        value = mean_variance_margin(z, y)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(mean_variance_margin(z.double(), y).item(), rel=1e-5)
        value.backward()
        assert z.grad.dtype == dtype

    def test_one_class_is_refused(self) -> None:
        with pytest.raises(CalpromptError, match=r"two or more classes, got \(3, 1\)"):
            mean_variance_margin(torch.zeros(3, 1), torch.zeros(3, dtype=torch.long))


class TestMoments:
    @given(seeds, st.integers(1, 12), st.integers(1, 12))
    def test_is_the_formula(self, seed: int, classes: int, dimension: int) -> None:
        tuned, frozen = normal(seed, classes, dimension), normal(seed + 1, classes, dimension)
        assert text_moment_matching(tuned, frozen).item() == pytest.approx(written_out(tuned, frozen).item(), rel=1e-9)

    @given(seeds, sizes, sizes)
    def test_gradient(self, seed: int, classes: int, dimension: int) -> None:
        frozen = features(seed + 1, classes, dimension)
        tuned = features(seed, classes, dimension).requires_grad_()
        torch.autograd.gradcheck(lambda t: text_moment_matching(t, frozen), tuned)

    @given(seeds, sizes, sizes)
    def test_gram_form_is_the_full_form(self, seed: int, classes: int, dimension: int) -> None:
        E, A = normal(seed, classes, dimension), normal(seed + 1, classes, dimension)
        gram, full = covariance_gap_gram(E, A).item(), covariance_gap_full(E, A).item()
        assert gram == pytest.approx(full, rel=1e-9, abs=1e-9)

    @pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
    @pytest.mark.parametrize("shape", [(2, 5), (50, 512), (60, 20)])
    def test_keeps_its_digits_when_tuned_and_frozen_are_close(self, shape: tuple[int, int], distance: float) -> None:
        frozen = features(1, *shape).float()
        tuned = frozen + distance * normal(2, *shape, dtype=torch.float32)
        for weights in ({}, {"mean_weight": 0.0}):
            exact = text_moment_matching(tuned.double(), frozen.double(), **weights).item()
            assert text_moment_matching(tuned, frozen, **weights).item() == pytest.approx(exact, rel=1e-5)

    @given(seeds, sizes, sizes)
    def test_order_of_classes_does_not_matter(self, seed: int, classes: int, dimension: int) -> None:
        tuned, frozen = features(seed, classes, dimension), features(seed + 1, classes, dimension)
        order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
        moved = text_moment_matching(tuned[order], frozen)
        assert moved.item() == pytest.approx(text_moment_matching(tuned, frozen).item(), abs=1e-12)

    @given(seeds, sizes, sizes)
    def test_zero_only_where_the_moments_agree(self, seed: int, classes: int, dimension: int) -> None:
        frozen = features(seed, classes, dimension)
        assert text_moment_matching(frozen, frozen).item() == 0
        mirrored = 2 * frozen.mean(dim=0) - frozen  # another set with the same mean and covariance
        assert text_moment_matching(mirrored, frozen).item() == pytest.approx(0, abs=1e-24)
        assert text_moment_matching(frozen + 0.01, frozen).item() > 1e-5
        assert text_moment_matching(1.01 * frozen, frozen).item() > 0

    def test_small_differences_keep_their_digits_in_float32(self) -> None:
        """Where expanding the square would leave nothing but rounding."""
        frozen = features(0, 50, 512)
        tuned = frozen + 1e-5 * normal(1, 50, 512)
        exact = text_moment_matching(tuned, frozen, mean_weight=0)
        single = text_moment_matching(tuned.float(), frozen.float(), mean_weight=0)
        assert single.item() == pytest.approx(exact.item(), rel=0.02)

    def test_leading_dimensions_are_averaged(self) -> None:
        tuned, frozen = features(0, 4, 6, 8), features(1, 6, 8)
        each = torch.stack([text_moment_matching(one, frozen) for one in tuned])
        assert text_moment_matching(tuned, frozen).item() == pytest.approx(each.mean().item())

    def test_frozen_side_gets_no_gradient(self) -> None:
        tuned, frozen = features(0, 5, 8).requires_grad_(), features(1, 5, 8).requires_grad_()
        text_moment_matching(tuned, frozen).backward()
        assert tuned.grad is not None
        assert frozen.grad is None

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, dtype: torch.dtype) -> None:
        tuned, frozen = features(0, 50, 512).to(dtype), features(1, 50, 512).to(dtype)
        value = text_moment_matching(tuned, frozen)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(text_moment_matching(tuned.double(), frozen.double()).item(), rel=1e-5)

    def test_different_classes_are_refused(self) -> None:
        with pytest.raises(CalpromptError, match=r"\(4, 8\) and \(5, 8\)"):
            text_moment_matching(torch.zeros(4, 8), torch.zeros(5, 8))

"""SaLS, histogram binning, isotonic regression and vector scaling: what each of them is, against outside references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.drawn import complete, drawn
from calprompt.calibrators import Histogram, Isotonic, SampleLogitScaling, StoredLogits, Vector
from calprompt.calibrators.isotonic import isotonic_regression
from calprompt.errors import CalpromptError

seeds = st.integers(0, 10_000)
few = settings(max_examples=25)


class TestSals:
    @given(seeds, st.integers(2, 9), st.floats(0.01, 100), st.floats(-50, 50))
    def test_has_the_zero_shot_range_and_the_tuned_order(self, seed: int, classes: int, a: float, b: float) -> None:
        record = complete(drawn(seed, classes=classes)[0], None, seed=seed)
        given = SampleLogitScaling()(record)
        zero_shot = record.zero_shot_logits.double()  # type: ignore[union-attr]
        assert torch.equal(given.amax(dim=1), zero_shot.amax(dim=1))
        assert torch.equal(given.amin(dim=1), zero_shot.amin(dim=1))
        assert torch.equal(given.argsort(dim=1), record.logits.argsort(dim=1))
        moved = StoredLogits(a * record.logits.double() + b, zero_shot_logits=record.zero_shot_logits)
        torch.testing.assert_close(SampleLogitScaling()(moved), given, rtol=1e-9, atol=1e-9)


class TestHistogram:
    def test_confidence_is_the_accuracy_of_the_bin_and_the_rest_keeps_its_proportions(self) -> None:
        logits, labels = drawn(0, n=300)
        given = Histogram().fit(logits, labels)(logits).softmax(dim=1)
        p = logits.double().softmax(dim=1)
        confidence, top = p.max(dim=1)
        for lo in range(10):
            members = (confidence > lo / 10) & (confidence <= (lo + 1) / 10)
            if members.any():
                accuracy = (top == labels)[members].double().mean()
                torch.testing.assert_close(given[members, top[members]], accuracy.expand(int(members.sum())))
        rest = logits.double().scatter(1, top[:, None], -torch.inf).softmax(dim=1)
        q = given.gather(1, top[:, None])
        torch.testing.assert_close(given, ((1 - q) * rest).scatter(1, top[:, None], q))

    def test_a_bin_without_images_is_left_as_it_is(self) -> None:
        sure = torch.tensor([[9.0, 0.0, 0.0]]).repeat(4, 1)
        binned = Histogram().fit(sure, torch.tensor([0, 0, 0, 1]))
        unsure = torch.tensor([[0.3, 0.2, 0.1]])
        torch.testing.assert_close(binned(unsure).softmax(dim=1), unsure.double().softmax(dim=1))

    def test_certain_bins_give_finite_logits_and_back_their_probabilities(self) -> None:
        logits = torch.tensor([[9.0, 0.0, -900.0], [0.4, 0.0, 0.0]])
        binned = Histogram().fit(logits, torch.tensor([0, 1]))  # accuracies 1 and 0
        given = binned(logits)
        assert bool(torch.isfinite(given).all())
        torch.testing.assert_close(
            given.softmax(dim=1), torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)
        )

    @pytest.mark.parametrize("n_bins", range(2, 41))
    def test_a_confidence_on_an_edge_is_looked_up_where_it_was_learned(self, n_bins: int) -> None:
        """Equal logits of C classes: 1 / C is an edge of bins whose number C divides."""
        for classes in (c for c in range(2, n_bins + 1) if n_bins % c == 0):
            level, sure = torch.zeros(4, classes), torch.eye(classes)[:1] * 50
            binned = Histogram(n_bins=n_bins).fit(torch.cat([level, sure]), torch.tensor([0, 1, 1, 1, 0]))
            given = binned(level).softmax(dim=1)
            torch.testing.assert_close(given[:, 0], torch.full((4,), 0.25, dtype=torch.float64))

    def test_bins_are_counted(self) -> None:
        with pytest.raises(CalpromptError, match="n_bins must be a whole number of at least 1"):
            Histogram(n_bins=0)


class TestIsotonic:
    @given(arrays(float, st.integers(1, 60), elements=st.integers(0, 20).map(lambda k: k / 20)), seeds)
    def test_regression_against_scikit_learn(self, x: np.ndarray, seed: int) -> None:
        from sklearn.isotonic import IsotonicRegression

        y = np.random.default_rng(seed).integers(0, 2, len(x)).astype(float)
        theirs = IsotonicRegression(out_of_bounds="clip").fit(x, y)
        corners, values = isotonic_regression(x, y)
        at = np.linspace(-0.5, 1.5, 101)
        np.testing.assert_allclose(np.interp(at, corners, values), theirs.predict(at), atol=1e-12)
        assert (np.diff(values) >= 0).all()

    def test_many_scores_against_scikit_learn(self) -> None:
        from sklearn.isotonic import IsotonicRegression

        random = np.random.default_rng(0)
        x = random.random(200_000)
        y = (random.random(200_000) < x**2).astype(float)
        theirs = IsotonicRegression(out_of_bounds="clip").fit(x, y)
        np.testing.assert_allclose(np.interp(x, *isotonic_regression(x, y)), theirs.predict(x), atol=1e-12)

    def test_many_classes_make_few_corners(self) -> None:
        """One hit in five hundred scores, as flattened class scores are."""
        random = np.random.default_rng(0)
        x = random.random(500_000)
        y = (random.random(500_000) < x / 250).astype(float)
        corners, values = isotonic_regression(x, y)
        assert len(corners) < 500
        assert (np.diff(corners) > 0).all()
        assert (np.diff(values) >= 0).all()

    @given(seeds, st.integers(2, 9), st.floats(0.1, 2))  # scikit-learn takes scores nearer than 1e-15 for one
    def test_is_one_map_on_all_class_scores(self, seed: int, classes: int, scale: float) -> None:
        from sklearn.isotonic import IsotonicRegression

        logits, labels = drawn(seed, classes=classes, scale=scale)
        right = logits.argmax(dim=1) == labels
        assume(bool(right.any()) and not bool(right.all()))
        p = logits.double().softmax(dim=1).numpy()
        hit = F.one_hot(labels, classes).numpy()
        theirs = IsotonicRegression(out_of_bounds="clip").fit(p.ravel(), hit.ravel())
        q = theirs.predict(p.ravel()).reshape(p.shape) + 1e-9 * p
        ours = Isotonic().fit(logits, labels)
        np.testing.assert_allclose(ours(logits).softmax(dim=1).numpy(), q / q.sum(axis=1, keepdims=True), atol=1e-9)
        grid = np.linspace(0, 1, 999)
        assert (np.diff(np.interp(grid, ours.scores, ours.frequencies)) >= -1e-15).all()

    def test_scores_of_no_frequency_keep_their_probabilities(self) -> None:
        mapped = Isotonic()
        mapped.scores, mapped.frequencies = [0.0, 0.9, 1.0], [0.0, 0.0, 1.0]
        logits = torch.tensor([[0.3, 0.2, 0.1]])
        torch.testing.assert_close(mapped(logits).softmax(dim=1), logits.double().softmax(dim=1))


class TestVector:
    @few
    @given(seeds, st.integers(2, 8), st.floats(0.5, 10))
    def test_is_the_optimum(self, seed: int, classes: int, scale: float) -> None:
        logits, labels = drawn(seed, classes=classes, scale=scale)
        logits = logits.double() + 20
        scaled = Vector().fit(logits, labels)
        w = torch.tensor(scaled.scale, dtype=torch.float64, requires_grad=True)
        b = torch.tensor(scaled.bias, dtype=torch.float64, requires_grad=True)
        loss = F.cross_entropy(w * logits + b, labels)
        loss = loss + 1e-3 * ((w - 1).square().sum() + b.square().sum()) / classes
        loss.backward()
        assert float(w.grad.abs().max()) < 1e-11
        assert float(b.grad.abs().max()) < 1e-12
        assert loss.item() <= F.cross_entropy(logits, labels).item()

    def test_against_scipy(self) -> None:
        from scipy.optimize import minimize

        logits, labels = drawn(1, n=200, classes=3)
        z, y = logits.double(), labels

        def objective(x: np.ndarray) -> float:
            w, b = torch.from_numpy(x[:3]), torch.from_numpy(x[3:])
            return float(F.cross_entropy(w * z + b, y) + 1e-3 * ((w - 1).square().sum() + b.square().sum()) / 3)

        found = minimize(objective, np.array([1.0] * 3 + [0.0] * 3), tol=1e-12)
        scaled = Vector().fit(logits, labels)
        np.testing.assert_allclose([*scaled.scale, *scaled.bias], found.x, atol=1e-4)  # type: ignore[misc]

    def test_undoes_what_was_done_to_a_class(self) -> None:
        """With many images it finds the scale and bias that calibrated logits were given."""
        generator = torch.Generator().manual_seed(0)
        honest = 2 * torch.randn(20_000, 3, generator=generator)
        labels = torch.multinomial(honest.softmax(dim=1), 1, generator=generator)[:, 0]
        spoiled = honest * torch.tensor([2.0, 1.0, 0.5]) + torch.tensor([1.0, 0.0, -2.0])
        given = Vector(ridge=1e-9).fit(spoiled, labels)(spoiled).softmax(dim=1)
        assert float((given - honest.double().softmax(dim=1)).abs().mean()) < 0.01

    def test_a_class_without_images_does_not_run_away(self) -> None:
        logits, labels = drawn(0, classes=4)
        scaled = Vector().fit(logits, labels.clamp(max=2))
        assert all(math.isfinite(value) and abs(value) < 50 for value in [*scaled.scale, *scaled.bias])  # type: ignore

    def test_what_is_too_flat_to_be_found_is_refused(self) -> None:
        logits, labels = drawn(0)
        with pytest.raises(CalpromptError, match=r"did not converge.*use a larger one"):
            Vector(ridge=1e-20).fit(1e-6 * logits.double() + 1e6, labels)

    def test_ridge_is_positive(self) -> None:
        with pytest.raises(CalpromptError, match="must be above 0"):
            Vector(ridge=0.0)

"""Which images tune and which are held out: nothing twice, nothing lost, and promises only where they can be kept."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.errors import SettingError
from calprompt.promises import Requests, divide
from calprompt.promises.division import plan_sentences

counts = st.lists(st.integers(1, 40), min_size=2, max_size=8)


def labels_of(sizes: list[int]) -> list[int]:
    return [label for label, size in enumerate(sizes) for _ in range(size)]


def names(sizes: list[int]) -> list[str]:
    return [f"class {label}" for label in range(len(sizes))]


@given(counts, st.integers(0, 5), st.sampled_from([None, 0.0, 0.2, 0.5]), st.sampled_from([None, 4, 16]))
def test_every_image_has_one_place(sizes: list[int], seed: int, held_out: float | None, most: int | None) -> None:
    labels = labels_of(sizes)
    found = divide(
        labels,
        names(sizes),
        Requests(0.1, 0.9),
        seed=seed,
        held_out=held_out,
        most_tuned=most if held_out is None else None,
    )
    assert sorted(found.tune + found.held_out) == list(range(len(labels)))
    assert {labels[index] for index in found.tune} == set(range(len(sizes))), "every class tunes"
    assert len(found.folds) == len(found.tune)
    assert [sum(pair) for pair in found.counts] == sizes
    assert set(found.folds) == set(range(found.n_folds))
    assert found == divide(
        labels,
        names(sizes),
        Requests(0.1, 0.9),
        seed=seed,
        held_out=held_out,
        most_tuned=most if held_out is None else None,
    )


@given(counts, st.integers(0, 3))
def test_folds_are_even_in_every_class(sizes: list[int], seed: int) -> None:
    labels = labels_of(sizes)
    found = divide(labels, names(sizes), Requests(), folds=4, seed=seed)
    for label in range(len(sizes)):
        own = Counter(fold for index, fold in zip(found.tune, found.folds, strict=True) if labels[index] == label)
        assert max(own.values()) - min(own.get(fold, 0) for fold in range(found.n_folds)) <= 1


@given(st.lists(st.integers(0, 9), min_size=20, max_size=60), st.integers(0, 3))
def test_groups_stay_together(groups: list[int], seed: int) -> None:
    labels = [index % 2 for index in range(len(groups))]
    found = divide(labels, ["a", "b"], Requests(None, 0.8), groups=groups, seed=seed, held_out=0.4)
    assert not {groups[index] for index in found.tune} & {groups[index] for index in found.held_out}
    place: dict[int, int] = {}
    for index, fold in zip(found.tune, found.folds, strict=True):
        assert place.setdefault(groups[index], fold) == fold


def test_two_hundred_photos_in_ten_folders() -> None:
    found = divide(labels_of([20] * 10), names([20] * 10), Requests(0.1, 0.9))
    assert found.counts == ((14, 6),) * 10
    assert not found.refusals
    stricter = divide(labels_of([20] * 10), names([20] * 10), Requests(0.05, 0.9))
    assert stricter.counts == ((10, 10),) * 10, "59 right answers are the fewest; half of the images may be held out"


def test_a_promise_that_takes_more_images_is_refused_with_their_number() -> None:
    found = divide(labels_of([4] * 3), names([4] * 3), Requests(0.05, 0.9))
    assert [refusal.needed for refusal in found.refusals] == [118, 18]
    assert not found.held_out, "images that no promise can be made from are better learned from"
    assert "it takes 59 held-out images at least, and of 12 images 6 can be held out" in found.refusals[0].reason
    text = " ".join(plan_sentences(found))
    assert "It cannot be promised that at most 5 % wrong among what it answers" in text
    assert "about 118 images in all would do" in text
    some = divide(labels_of([8] * 3), names([8] * 3), Requests(0.05, 0.9))
    assert [refusal.needed for refusal in some.refusals] == [118]
    assert len(some.held_out) >= 9, "the other promise can be made"


def test_per_class_says_which_classes_have_too_few() -> None:
    found = divide(labels_of([30, 6]), names([30, 6]), Requests(None, 0.9, per_class=True))
    (refusal,) = found.refusals
    assert "class 1 has fewer" in refusal.reason
    assert refusal.needed == 36


def test_single_images_and_unequal_classes_are_told() -> None:
    found = divide(labels_of([40, 1, 3]), names([40, 1, 3]), Requests(0.1, 0.9))
    assert found.counts[1] == (1, 0)
    assert any("with one image (class 1)" in note for note in found.notes)
    assert any("1 to 40 images" in note for note in found.notes)
    assert found.unpromised[0] == 1


def test_more_than_shots_are_held_out() -> None:
    found = divide(labels_of([100, 100]), names([100, 100]), Requests(0.1, 0.9), most_tuned=64)
    assert found.counts == ((64, 36),) * 2


@pytest.mark.parametrize(
    ("labels", "class_names", "options", "problem"),
    [
        ([0, 0, 0], ["cat"], {}, "all images are of one class, 'cat'"),
        ([0, 0, 0], ["cat", "dog"], {}, "there is no image of 'dog'"),
        ([0, 1], ["cat", "dog"], {"held_out": 1.0}, "held_out must be a share"),
    ],
)
def test_what_cannot_be_divided(labels: list[int], class_names: list[str], options: dict, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        divide(labels, class_names, Requests(), **options)


def test_requests_are_shares() -> None:
    with pytest.raises(SettingError, match="target_error must be a fraction"):
        Requests(target_error=1.5)
    with pytest.raises(SettingError, match="per_class is about prediction sets"):
        Requests(per_class=True)

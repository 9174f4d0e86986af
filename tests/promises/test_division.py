"""Which images tune and which are held out: nothing twice, nothing lost, and promises only where they can be kept."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.errors import SettingError
from calprompt.kernel import softmax
from calprompt.promises import Evidence, Requests, divide, make_promises
from calprompt.promises.division import plan_sentences

counts = st.lists(st.integers(1, 40), min_size=2, max_size=8)


def labels_of(sizes: list[int]) -> list[int]:
    return [label for label, size in enumerate(sizes) for _ in range(size)]


def names(sizes: list[int]) -> list[str]:
    return [f"class {label}" for label in range(len(sizes))]


@given(counts, st.integers(0, 5), st.sampled_from([None, 0.0, 0.2, 0.5]), st.sampled_from([None, 4, 16]))
def test_every_image_has_one_place(sizes: list[int], seed: int, held_out: float | None, most: int | None) -> None:
    labels = labels_of(sizes)
    options = {"seed": seed, "held_out": held_out, "most_tuned": most}
    found = divide(labels, names(sizes), Requests(0.1, 0.9), **options)
    assert sorted(found.tune + found.promise + found.unused) == list(range(len(labels)))
    assert {labels[index] for index in found.tune} == set(range(len(sizes))), "every class tunes"
    assert len(found.folds) == len(found.tune)
    assert set(found.folds) == set(range(found.n_folds)), "no fold is empty"
    assert found == divide(labels, names(sizes), Requests(0.1, 0.9), **options)


@given(counts, st.integers(0, 5), st.sampled_from([None, 4, 16]), st.integers(1, 4))
def test_images_given_back_to_learn_from_are_not_promised_on(
    sizes: list[int], seed: int, most: int | None, group: int
) -> None:
    labels = labels_of([10 * size for size in sizes])
    groups = [index // group for index in range(len(labels))]
    found = divide(labels, names(sizes), Requests(0.1, 0.9), seed=seed, most_tuned=most, groups=groups)
    if found.smaller is None:
        return
    less = found.smaller
    assert set(less.tune) > set(found.tune)
    assert not {groups[index] for index in less.promise} & {groups[index] for index in (*less.tune, *found.tune)}, (
        "what was learned from before it was decided to hold out fewer is not promised on"
    )
    assert len(less.promise) < len(found.promise)
    assert sorted(less.tune + less.promise + less.unused) == list(range(len(labels)))


def test_every_image_is_used_where_no_more_can_be_held_out() -> None:
    sizes = [13, 60, 13, 45, 7]
    found = divide(labels_of(sizes), names(sizes), Requests(0.3, 0.9, per_class=True))
    assert found.smaller is None
    assert found.unused == ()


@given(counts, st.sampled_from([None, 4, 16]))
def test_promises_rest_on_the_proportions_of_the_folder(sizes: list[int], most: int | None) -> None:
    found = divide(labels_of(sizes), names(sizes), Requests(None, 0.5), most_tuned=most)
    shares = [held / size for (_, held), size in zip(found.counts, sizes, strict=True) if held]
    rounding = [1 / size for (_, held), size in zip(found.counts, sizes, strict=True) if held]
    if shares:
        pairs = list(zip(shares, rounding, strict=True))
        assert max(share - edge for share, edge in pairs) <= min(share + edge for share, edge in pairs)


@given(counts, st.integers(0, 3))
def test_folds_are_even_in_every_class(sizes: list[int], seed: int) -> None:
    labels = labels_of(sizes)
    found = divide(labels, names(sizes), Requests(), folds=4, seed=seed)
    for label in range(len(sizes)):
        own = Counter(fold for index, fold in zip(found.tune, found.folds, strict=True) if labels[index] == label)
        assert max(own.values()) - min(own.get(fold, 0) for fold in range(found.n_folds)) <= 1


@given(st.lists(st.integers(0, 9), min_size=20, max_size=60), st.integers(0, 3))
def test_groups_stay_together_and_are_promised_on_once(groups: list[int], seed: int) -> None:
    labels = [index % 2 for index in range(len(groups))]
    if len(set(groups)) < 2:
        return
    found = divide(labels, ["a", "b"], Requests(None, 0.8), groups=groups, seed=seed, held_out=0.4)
    tuned, promised, unused = ({groups[i] for i in side} for side in (found.tune, found.promise, found.unused))
    assert not tuned & (promised | unused)
    assert len(promised) == len(found.promise), "one image of each group"
    assert {labels[index] for index in found.tune} == {0, 1}
    assert set(found.folds) == set(range(found.n_folds))
    place: dict[int, int] = {}
    for index, fold in zip(found.tune, found.folds, strict=True):
        assert place.setdefault(groups[index], fold) == fold


def test_large_groups_are_drawn_in_proportion() -> None:
    """Thirty groups of four images and sixty single ones: two thirds of the images are of the large groups."""
    groups = [number // 4 for number in range(120)] + list(range(100, 160))
    labels = [group % 2 for group in groups]
    large = total = 0
    for seed in range(300):
        found = divide(labels, ["a", "b"], Requests(None, 0.8), groups=groups, seed=seed)
        large += sum(groups[index] < 100 for index in found.promise)
        total += len(found.promise)
    assert large / total == pytest.approx(2 / 3, abs=0.03)


def test_classes_keep_their_share_of_images_despite_groups() -> None:
    """One class of single images and one in groups of ten; classes of four and five images, which round differently."""
    groups = [*range(100), *(100 + number // 10 for number in range(100))]
    found = divide([0] * 100 + [1] * 100, ["single", "grouped"], Requests(None, 0.9), groups=groups)
    assert found.counts[0][1] == found.counts[1][1] == 5, "half of ten groups, and as many of the others"
    sizes = [4] * 20 + [5] * 20
    held = [divide(labels_of(sizes), names(sizes), Requests(None, 0.9), seed=seed).counts for seed in range(100)]
    small, large = (np.mean([[own for _, own in each[part]] for each in held]) for part in (slice(20), slice(20, 40)))
    assert small / large == pytest.approx(4 / 5, abs=0.02)


def test_too_few_groups_are_refused_with_the_number_of_groups() -> None:
    groups = [*range(100), *(100 + number // 10 for number in range(100))]
    labels = [0] * 100 + [1] * 100
    (refusal,) = divide(labels, ["single", "grouped"], Requests(0.1), groups=groups).refusals
    assert "it takes 29 held-out groups of images at least, and of 200 images 10 can be used" in refusal.detail
    number = int(refusal.detail.split(" of grouped, which has 10")[0].split()[-1])
    groups = [*range(100), *(100 + index % number for index in range(100))]
    assert number <= 31
    assert not divide(labels, ["single", "grouped"], Requests(0.1), groups=groups).refusals, "so many groups do"


def test_copies_count_once() -> None:
    contents = [*range(20), *([20] * 20)]
    found = divide([0] * 20 + [1] * 19 + [1], ["a", "b"], Requests(None, 0.5), groups=contents, contents=contents)
    assert found.unseen.classes == ("b",), "twenty copies of one image"
    assert found.unseen.share == pytest.approx(1 / 21)


def test_classes_never_held_out_are_counted() -> None:
    sizes = [60] + [2] * 30
    found = divide(labels_of(sizes), names(sizes), Requests(0.1, 0.8))
    assert len(found.unseen.classes) == 30
    assert found.unseen.share == 0.5
    (refusal,) = found.refusals
    assert refusal.kind == "error"
    assert "no image of class 1, class 2, class 3, class 4, class 5 and 25 more (50 % of the images)" in refusal.detail
    assert refusal.needed is not None
    more = [round(size * refusal.needed / 120) + 1 for size in sizes]
    assert not divide(labels_of(more), names(more), Requests(0.1, 0.8)).refusals, "so many images do"


def test_the_promise_is_kept_with_groups() -> None:
    """Images of a group are right or wrong together, and 15 % of the groups are wrong: 10 % must not be promised."""
    rng = np.random.default_rng(0)
    trials, broken = 400, 0
    for trial in range(trials):
        groups = np.repeat(np.arange(120), 5)
        labels = (np.arange(600) // 5) % 2
        wrong = (rng.random(120) < 0.15)[groups]
        predicted = np.where(wrong, 1 - labels, labels)
        logits = np.zeros((600, 2))
        logits[np.arange(600), predicted] = 3.0
        found = divide(labels.tolist(), ["a", "b"], Requests(0.1), groups=groups.tolist(), seed=trial)
        held = np.array(found.promise, dtype=int)
        rows = np.array(found.tune, dtype=int)
        pilot, kept = (Evidence.of(logits[r], softmax(logits[r]), labels[r]) for r in (rows, held))
        _, (promise,) = make_promises(Requests(0.1), pilot, kept, refusals=found.refusals)
        broken += promise.status == "made"
    assert broken / trials <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_division_of_two_hundred_photos_in_ten_folders() -> None:
    found = divide(labels_of([20] * 10), names([20] * 10), Requests(0.1, 0.9))
    assert found.counts == ((14, 6),) * 10
    assert not found.refusals
    stricter = divide(labels_of([20] * 10), names([20] * 10), Requests(0.05, 0.9))
    assert stricter.counts == ((10, 10),) * 10, "59 right answers are the fewest; half of the images may be held out"


def test_a_promise_that_takes_more_images_is_refused_with_their_number() -> None:
    found = divide(labels_of([4] * 3), names([4] * 3), Requests(0.05, 0.9))
    assert [refusal.kind for refusal in found.refusals] == ["error", "sets"]
    for refusal in found.refusals:
        assert refusal.needed is not None
        each = -(-refusal.needed // 3)
        enough = divide(labels_of([each] * 3), names([each] * 3), Requests(0.05, 0.9))
        assert refusal.kind not in {other.kind for other in enough.refusals}, "so many images do"
        few = divide(labels_of([each - 2] * 3), names([each - 2] * 3), Requests(0.05, 0.9))
        assert refusal.kind in {other.kind for other in few.refusals}, "and not many fewer"
    assert not found.promise, "images that no promise can be made from are better learned from"
    assert "it takes 59 held-out images at least, and of 12 images 6 can be used" in found.refusals[0].detail
    text = " ".join(plan_sentences(found))
    assert "It cannot be promised that at most 5 % of its answers are wrong" in text
    assert f"it takes about {found.refusals[0].needed} images in all" in text
    some = divide(labels_of([8] * 3), names([8] * 3), Requests(0.05, 0.9))
    assert [refusal.kind for refusal in some.refusals] == ["error"]
    assert len(some.promise) >= 9, "the other promise can be made"
    never = divide(labels_of([8] * 3), names([8] * 3), Requests(0.05, 0.9), held_out=0.0)
    assert [refusal.needed for refusal in never.refusals] == [None, None]


def test_per_class_says_which_classes_have_too_few() -> None:
    found = divide(labels_of([30, 30, 6]), names([30, 30, 6]), Requests(None, 0.9, per_class=True))
    assert not found.refusals
    assert any("class 2 is in every set per class" in note for note in found.notes)
    none = divide(labels_of([10, 10]), names([10, 10]), Requests(None, 0.9, per_class=True))
    assert [refusal.kind for refusal in none.refusals] == ["sets per class"]
    assert "17 images of each class would do" in none.refusals[0].detail


def test_single_images_and_unequal_classes_are_reported() -> None:
    found = divide(labels_of([40, 1, 3]), names([40, 1, 3]), Requests(0.1, 0.9))
    assert found.counts[1] == (1, 0)
    assert any("with one image (class 1)" in note for note in found.notes)
    assert any("1 to 40 images" in note for note in found.notes)
    assert found.counts[1][1] == 0


def test_more_than_shots_are_held_out() -> None:
    found = divide(labels_of([100, 100]), names([100, 100]), Requests(0.1, 0.9), most_tuned=64)
    assert found.counts == ((64, 36),) * 2
    unequal = divide(labels_of([1000, 100]), names([1000, 100]), Requests(0.1, 0.9), most_tuned=64)
    assert unequal.counts == ((64, 360), (64, 36)), "in the proportions of the folder"
    assert "576 more images are not used" in " ".join(plan_sentences(unequal))


@pytest.mark.parametrize(
    ("labels", "class_names", "options", "problem"),
    [
        ([0, 0, 0], ["cat"], {}, "all images are of one class, 'cat'"),
        ([0, 0, 0], ["cat", "dog"], {}, "there is no image of 'dog'"),
        ([0, 1], ["cat", "dog"], {"held_out": 1.0}, "held_out must be a share"),
        ([0, 1], ["cat", "dog"], {"groups": ["x", "x"]}, "all images are one group"),
    ],
)
def test_undividable_folders_are_refused(
    labels: list[int], class_names: list[str], options: dict, problem: str
) -> None:
    with pytest.raises(SettingError, match=problem):
        divide(labels, class_names, Requests(), **options)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(SettingError, match="target_error must be a fraction"):
        Requests(target_error=1.5)
    with pytest.raises(SettingError, match="per_class is about prediction sets"):
        Requests(per_class=True)


def test_a_refusal_counts_the_images_of_the_folder() -> None:
    """Copies count once for a promise, but the user sees nine files."""
    contents = list("abcddefgh")
    found = divide([0] * 5 + [1] * 4, ["ant", "bee"], Requests(coverage=0.9), groups=contents, contents=contents)
    (refusal,) = found.refusals
    assert "of 9 images, 1 of which is a copy, 4 can be used" in refusal.detail

"""Few-shot sampling and the base/novel cut, against the protocol written out plainly."""

import math
import random
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calprompt.data.classes import with_base
from calprompt.data.dataset import Dataset, Split
from calprompt.data.images import FeatureRows
from calprompt.data.splits import base_novel, few_shot
from calprompt.errors import CalpromptError


def split(labels: list[int], start: float = 0.0) -> Split:
    """Images whose one feature tells which they are."""
    return Split(FeatureRows(start + torch.arange(len(labels), dtype=torch.float64)[:, None]), tuple(labels))


def dataset(train: list[int], val: list[int], test: list[int] | None = None) -> Dataset:
    names = tuple(f"class {label}" for label in range(max(train) + 1))
    return Dataset("toys", names, split(train), split(val, 1000.0), split(train if test is None else test, 2000.0))


def known(part: Split) -> list[tuple[float, int]]:
    return list(zip(part.images.rows[:, 0].tolist(), part.labels, strict=True))


def plainly(items: list[tuple[float, int]], shots: int) -> list[tuple[float, int]]:
    """As the public code samples, from python's global random numbers."""
    tracker = defaultdict(list)
    for item in items:
        tracker[item[1]].append(item)
    sampled: list[tuple[float, int]] = []
    for own in tracker.values():
        sampled.extend(random.sample(own, shots) if len(own) >= shots else own)
    return sampled


labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda drawn: [*drawn, 0, 1, 2, 3, 4])


@given(
    train=labels, val=st.lists(st.integers(0, 4), max_size=40), shots=st.integers(1, 20), seed=st.integers(0, 10_000)
)
def test_shots_are_those_of_the_public_code(train: list[int], val: list[int], shots: int, seed: int) -> None:
    whole = dataset(train, val)
    drawn = few_shot(whole, shots, seed)
    random.seed(seed)
    assert known(drawn.train) == plainly(known(whole.train), shots)
    assert known(drawn.val) == plainly(known(whole.val), min(shots, 4))
    assert known(drawn.test) == known(whole.test)


def test_no_shots_is_everything_and_global_random_numbers_are_left_alone() -> None:
    whole = dataset([0, 1, 2, 3] * 5, [0, 1, 2, 3])
    assert few_shot(whole, None, 1) is whole
    assert few_shot(whole, 2, 1, val_shots=1).train.labels == few_shot(whole, 2, 1).train.labels
    assert len(few_shot(whole, None, 1, val_shots=1).val) == len(set(whole.val.labels))
    assert few_shot(whole, None, 1, val_shots=1).train is whole.train
    state = random.getstate()
    few_shot(whole, 2, 1)
    assert random.getstate() == state
    with pytest.raises(CalpromptError, match="at least 1; got 0"):
        few_shot(whole, 0, 1)


@given(classes=st.integers(4, 40), seed=st.integers(0, 100))
def test_base_is_the_first_half_rounded_up(classes: int, seed: int) -> None:
    order = [label for label in range(classes) for _ in range(2)]
    random.Random(seed).shuffle(order)
    whole = dataset(order, order)
    base, novel = base_novel(whole)
    middle = math.ceil(classes / 2)
    assert base.class_names == whole.class_names[:middle]
    assert novel.class_names == whole.class_names[middle:]
    for part, first in ((base, 0), (novel, middle)):
        for kind in ("train", "val", "test"):
            kept = [(what, label - first) for what, label in known(getattr(whole, kind))]
            assert known(getattr(part, kind)) == [pair for pair in kept if 0 <= pair[1] < len(part.class_names)]


@pytest.mark.parametrize(("classes", "says"), [(1, "has 1 class;"), (2, "has 2 classes"), (3, "so there must be four")])
def test_a_part_of_one_class_is_refused(classes: int, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        base_novel(dataset(list(range(classes)), []))


def test_a_part_without_test_images_is_refused() -> None:
    with pytest.raises(CalpromptError, match=r"no test images of the novel classes \(class 2"):
        base_novel(dataset([0, 1, 2, 3], [], test=[0, 1]))


def test_a_dataset_without_test_images_is_refused() -> None:
    with pytest.raises(CalpromptError, match="there are no test images"):
        dataset([0, 1, 2, 3], [], test=[])


def test_a_base_class_of_a_name_that_several_have_is_refused() -> None:
    several = replace(
        dataset([0, 1, 2, 3], [], test=[0, 1, 2, 3]), class_names=("a", "b", "c", "b"), repeated_names=True
    )
    assert with_base(several, ("a", "c"), "base.txt").base == (0, 2)
    with pytest.raises(CalpromptError, match="lists base class 'b', and toys has several classes of that name"):
        with_base(several, ("a", "b"), "base.txt")

"""Where validation images come from: disjoint from what trains, always the same, of the share that was asked for."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calprompt.data.dataset import Dataset
from calprompt.data.load import load_dataset
from calprompt.data.split_files import load_split, save_split
from calprompt.data.splits import (
    base_novel,
    few_shot,
    keep_share,
    normalized_validation,
    parse_validation,
    with_validation,
)
from calprompt.errors import CalpromptError, SettingError
from data import trees
from data.test_splits import dataset, known

labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda drawn: [*drawn, 0, 1, 2, 3, 4])
shares = st.integers(1, 99).map(lambda percent: percent / 100)
seeds = st.integers(0, 10_000)


@given(train=labels, share=shares, seed=seeds)
def test_the_share_of_each_class_is_kept(train: list[int], share: float, seed: int) -> None:
    kept = keep_share(train, share, seed)
    assert kept == sorted(set(kept)) == keep_share(train, share, seed)
    have, found = Counter(train), Counter(train[index] for index in kept)
    for label, count in have.items():
        assert found[label] == min(max(1, round(share * count)), count - 1)


@given(train=labels, share=shares, seed=seeds)
def test_other_classes_do_not_change_what_is_kept(train: list[int], share: float, seed: int) -> None:
    own = [index for index, label in enumerate(train) if label == 2]
    alone = [own[index] for index in keep_share([2] * len(own), share, seed)]
    assert alone == [index for index in keep_share(train, share, seed) if train[index] == 2]


@given(train=labels, share=shares, seed=seeds)
def test_images_that_are_each_of_their_own_are_groups_of_one(train: list[int], share: float, seed: int) -> None:
    assert keep_share(train, share, seed, list(range(len(train)))) == keep_share(train, share, seed)


@given(train=labels, share=shares, seed=seeds, things=st.integers(1, 30), data=st.data())
def test_images_of_one_thing_stay_together(
    train: list[int], share: float, seed: int, things: int, data: st.DataObject
) -> None:
    groups = data.draw(st.lists(st.integers(0, things), min_size=len(train), max_size=len(train)))
    kept = set(keep_share(train, share, seed, groups))
    assert kept == set(keep_share(train, share, seed, groups))
    rest = set(range(len(train))) - kept
    assert not {groups[index] for index in kept} & {groups[index] for index in rest}
    assert {train[index] for index in rest} == set(train)  # every class still trains


@given(sizes=st.lists(st.integers(1, 6), min_size=2, max_size=12), share=shares, seed=seeds)
def test_things_of_one_class_fill_the_share_as_far_as_they_fit(sizes: list[int], share: float, seed: int) -> None:
    groups = [thing for thing, size in enumerate(sizes) for _ in range(size)]
    kept = keep_share([0] * len(groups), share, seed, groups)
    wanted = max(1, round(share * len(groups)))
    assert kept
    assert len(kept) <= wanted or (len(kept) == min(sizes) and not any(size <= wanted for size in sizes))


@given(train=labels, share=shares, shots=st.one_of(st.none(), st.integers(1, 20)), seed=seeds)
def test_no_shot_validates(train: list[int], share: float, shots: int | None, seed: int) -> None:
    whole = dataset(train, [0, 1, 1, 3])
    drawn = few_shot(whole, shots, seed, validation=f"train:{share}")
    trained, validated = set(known(drawn.train)), set(known(drawn.val))
    assert not trained & validated
    assert trained | validated <= set(known(whole.train))  # its own validation images are left alone
    assert {label for _, label in trained} == set(train)
    several = {label for label, count in Counter(train).items() if count > 1}
    assert {label for _, label in validated} == several
    assert known(drawn.test) == known(whole.test)
    per_class = Counter(label for _, label in validated)
    assert shots is None or max(per_class.values(), default=0) <= min(shots, 4)
    again = few_shot(whole, shots, seed, validation=f"train:{share}")
    assert (known(again.train), known(again.val)) == (known(drawn.train), known(drawn.val))


@given(train=st.lists(st.integers(0, 4), min_size=40, max_size=80), seed=seeds)
def test_other_seeds_keep_other_images(train: list[int], seed: int) -> None:
    assert len({tuple(keep_share(train, 0.5, seed + more)) for more in range(8)}) > 1


@given(train=labels, val_shots=st.one_of(st.none(), st.integers(0, 5)), seed=seeds)
def test_test_images_validate_all_of_them_unless_fewer_are_asked_for(
    train: list[int], val_shots: int | None, seed: int
) -> None:
    whole = dataset(train, [0, 1])
    drawn = few_shot(whole, 2, seed, val_shots, "test")
    assert known(drawn.train) == known(few_shot(whole, 2, seed).train)
    assert set(known(drawn.val)) <= set(known(whole.test))
    if val_shots is None:
        assert known(drawn.val) == known(whole.test)
        assert few_shot(whole, None, seed, validation="test").val is whole.test
    else:
        found = Counter(label for _, label in known(drawn.val))
        assert all(found[label] == min(val_shots, count) for label, count in Counter(train).items())
    base, _ = base_novel(drawn)
    assert set(base.val.labels) <= set(range(3))


def test_its_own_images_validate_unless_others_are_asked_for() -> None:
    whole = dataset([0, 1, 2, 3] * 5, [0, 1, 2, 3] * 2)
    assert with_validation(whole, "own", 1) is whole
    assert few_shot(whole, None, 1, validation="own") is whole
    state = random.getstate()
    few_shot(whole, 2, 1, validation="train:0.2")
    assert random.getstate() == state
    assert len(few_shot(whole, None, 1, 3, "train:0.6").val) == 4 * 3  # more than the two it has


def test_a_class_of_one_image_trains_on_it() -> None:
    drawn = few_shot(dataset([0, 1, 1, 2, 2, 3, 3], []), None, 1, validation="train:0.9")
    assert set(drawn.train.labels) == {0, 1, 2, 3}
    assert sorted(drawn.val.labels) == [1, 2, 3]


@pytest.mark.parametrize(
    "text", ["", "val", "train", "train:", "train:0", "train:1", "train:0.0", "train:x", "train:1.5", "train:-0.2",
             "own:0.2", "test:0.5", "train:nan", "Test", "train:0.2:3"],
)  # fmt: skip
def test_unknown_validation_settings_are_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"validation must be own, test, or train:SHARE .* such as train:0.2; got"):
        parse_validation(text)


def test_validation_is_normalized_to_one_spelling() -> None:
    assert {normalized_validation(text) for text in ("train:0.2", "train:.2", "train:0.200")} == {"train:0.2"}
    assert [normalized_validation(text) for text in ("own", "test")] == ["own", "test"]


def digestpath(root: Path, name: str, folder: str) -> Dataset:
    """Patches of six slides, four of each, half of them malignant."""
    for slide in range(6):
        for number in range(4):
            for kind in ("train", "test"):
                diagnosis = "malignant" if number % 2 else "benign"
                trees.put(root / "digestpath" / folder / kind / diagnosis / name.format(f"{kind}{slide}", number))
    return load_dataset("digestpath", root=root)


@pytest.mark.parametrize(
    ("name", "folder"), [("2019_{}-a_2_{:05d}.png", "patches"), ("2019_{}-a_downsample=2_{:05d}.png", "images")]
)
def test_patches_of_a_slide_do_not_train_and_validate(tmp_path: Path, name: str, folder: str) -> None:
    whole = digestpath(tmp_path, name, folder)
    drawn = few_shot(whole, None, 1, validation="train:0.34")

    def slides(split: str) -> set[str]:
        return {Path(path).name[: len("2019_train0")] for path in getattr(drawn, split).images.paths}

    assert len(slides("val")) == 2
    assert len(slides("train")) == 4
    assert not slides("val") & slides("train")
    assert sorted(Counter(drawn.val.labels).values()) == [4, 4]
    save_split(whole, tmp_path / "split.json")
    again = load_split(tmp_path / "split.json", root=whole.train.images.root)
    assert again.group_by == whole.group_by
    assert few_shot(again, None, 1, validation="train:0.34").val.labels == drawn.val.labels


def test_without_training_images_none_are_kept() -> None:
    whole = dataset([0, 1, 2, 3], [])
    empty = replace(whole, train=whole.train.take([]), test_only=True)
    assert len(with_validation(empty, "train:0.5", 1).val) == 0
    with pytest.raises(CalpromptError, match="validation must be"):
        with_validation(empty, "train:2", 1)

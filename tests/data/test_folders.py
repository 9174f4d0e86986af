"""Datasets from folders: layouts, the split made here, and what is said about folders that are not datasets."""

import json
import warnings
from pathlib import Path

import pytest

import samples
from calprompt.data.checks import warn_left_out
from calprompt.data.dataset import split_counts
from calprompt.data.listings import list_folder
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.runs.preparation import prepare


def test_class_folders_become_classes_in_sorted_order(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path / "zoo", ("dog", "Bee", "ant"), each=10)
    dataset = load_dataset(root)
    assert (dataset.name, dataset.class_names, dataset.template) == ("zoo", ("Bee", "ant", "dog"), None)
    assert [len(split) for split in (dataset.train, dataset.val, dataset.test)] == [15, 6, 9]
    for split, each in ((dataset.train, 5), (dataset.val, 2), (dataset.test, 3)):
        assert split.labels == tuple(label for label in range(3) for _ in range(each))
        names = [split.images.name(index).split("/")[0] for index in range(len(split))]
        assert names == [dataset.class_names[label] for label in split.labels]


def test_the_split_uses_every_image_once_and_is_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = samples.picture_folder(tmp_path, each=9)
    splits = []
    for seed in (0, 0, 1):
        monkeypatch.setattr("calprompt.data.dataset.SPLIT_SEED", seed)
        dataset = list_folder(root).dataset()
        splits.append([set(split.images.paths) for split in dataset.splits.values()])
    assert splits[0] == splits[1] != splits[2]
    assert sorted(path for split in splits[0] for path in split) == sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.png")
    )


def test_another_class_does_not_move_the_images_of_the_others(tmp_path: Path) -> None:
    before = list_folder(samples.picture_folder(tmp_path)).dataset().test.images.paths
    samples.picture_folder(tmp_path, ("aardvark",))
    after = list_folder(tmp_path).dataset().test.images.paths
    assert [path for path in after if not path.startswith("aardvark/")] == list(before)


def test_every_class_trains_and_tests_however_small() -> None:
    for n in range(2, 300):
        train, val, test = split_counts(n)
        assert train + val + test == n
        assert min(train, test) >= 1
        assert abs(train - 0.5 * n) <= 1.5
        assert abs(test - 0.3 * n) <= 1


def test_hidden_and_other_files_are_left_out(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path)
    before = list_folder(root).dataset()
    (root / ".cache").mkdir()
    for clutter in (".hidden.png", "Thumbs.db", "notes.txt"):
        (root / "ant" / clutter).write_text("clutter")
    (root / "README.md").write_text("clutter")
    samples.picture(root / "ant" / "UPPER.JPG", seed=1)
    after = list_folder(root).dataset()
    assert after.class_names == before.class_names
    assert (
        len(after.train) + len(after.val) + len(after.test)
        == len(before.train) + len(before.val) + len(before.test) + 1
    )


def test_a_run_warns_of_pictures_where_no_class_has_them(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path / "zoo")
    (root / "ant" / "notes.txt").write_text("clutter")
    with pytest.warns(UserWarning, match=r"zoo: left out, 1 file that cannot be read as an image \(1 .txt\)"):
        prepare(samples.config(root))
    samples.picture(root / "ant" / "young" / "1.png", seed=1)
    with pytest.warns(UserWarning, match=r"zoo: left out, a folder inside a class folder: ant/young$"):
        prepare(samples.config(root))
    (root / "ant" / "young").rename(tmp_path / "young")
    samples.picture(root / "loose.png", seed=1)
    with pytest.warns(UserWarning, match=r"zoo: left out, not in a class folder: loose.png$"):
        prepare(samples.config(root))


def test_what_a_split_file_leaves_out_is_its_own_affair(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path / "zoo", ("ant", "bee"))
    rows = [[f"{name}/{i}.png", label, name] for label, name in enumerate(("ant", "bee")) for i in range(10)]
    (root / "split_zoo.json").write_text(json.dumps({"train": rows[::2], "val": [], "test": rows[1::2]}))
    samples.picture(root / "ant" / "young" / "1.png", seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_left_out(load_dataset(root), root)


def test_a_folder_is_found_in_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples.picture_folder(tmp_path / "there" / "zoo", ("ant", "bee"))
    assert load_dataset("zoo", root=tmp_path / "there").class_names == ("ant", "bee")
    samples.picture_folder(tmp_path / "zoo", ("cat", "dog"))
    monkeypatch.chdir(tmp_path)
    assert load_dataset("zoo", root=tmp_path / "there").class_names == ("cat", "dog")  # what is there as it stands
    with pytest.raises(CalpromptError, match="there is no data at aquarium"):
        load_dataset("aquarium", root=tmp_path / "there")


def split_folder(root: Path, *kinds: str) -> Path:
    for kind in kinds:
        samples.picture_folder(root / kind, each=2)
    return root


def test_folders_that_are_split_already_stay_so(tmp_path: Path) -> None:
    dataset = load_dataset(split_folder(tmp_path, "train", "val", "test"))
    assert dataset.class_names == samples.NAMES
    for kind in ("train", "val", "test"):
        split = getattr(dataset, kind)
        assert len(split) == 12
        assert all(path.startswith(f"{kind}/") for path in split.images.paths)


def test_val_may_be_missing(tmp_path: Path) -> None:
    assert len(load_dataset(split_folder(tmp_path, "train", "test")).val) == 0


def test_train_may_be_the_name_of_a_class(tmp_path: Path) -> None:
    dataset = load_dataset(samples.picture_folder(tmp_path, ("bus", "car", "tram", "train")))
    assert dataset.class_names == ("bus", "car", "train", "tram")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: None, "there is no data at"),
        (lambda root: root.mkdir(), "has no subfolders"),
        (lambda root: root.write_text("hello"), "is not data"),
        (lambda root: (samples.picture_folder(root) / "gnu").mkdir(), "gnu has no images; expected files ending in"),
        (lambda root: samples.picture(samples.picture_folder(root) / "gnu" / "1.png", 0), "gnu has one image"),
        (
            lambda root: [(samples.picture_folder(root) / name).mkdir() for name in ("gnu", "owl")],
            r"gnu has no images; .*\n.*owl has no images",
        ),
        (
            lambda root: samples.picture_folder(root, ("pit_bull", "Pit bull", "cat")),
            "reads these alike: 'Pit bull' and 'pit_bull'",
        ),
        (lambda root: split_folder(root, "train", "val"), "has train/ but no test/"),
        (lambda root: split_folder(root, "train", "test", "valid"), "and also valid/"),
        (
            lambda root: samples.picture(split_folder(root, "train", "test") / "test" / "gnu" / "1.png", 0),
            "'gnu' is in test/ but not in train/",
        ),
        (lambda root: (split_folder(root, "train", "test") / "test" / "ant2").mkdir(), "'ant2' is in test/"),
    ],
)
def test_bad_input_is_reported(tmp_path: Path, make, says: str) -> None:
    root = tmp_path / "data"
    make(root)
    with pytest.raises(CalpromptError, match=says):
        load_dataset(root)


def test_a_class_with_one_image_tells_of_files_that_need_a_decoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calprompt.data.listings.SUFFIXES", (".png",))
    root = samples.picture_folder(tmp_path / "photos", ("ant", "bee"), each=2)
    for path in sorted((root / "bee").iterdir())[1:]:
        path.rename(path.with_suffix(".heic"))
    with pytest.raises(CalpromptError, match=r"bee has one image.*1 file that cannot be read.*1 \.heic.*pillow-heif"):
        list_folder(root).dataset()

"""Split files of the field to the byte, the shots drawn from them, and drawn splits saved to be shared."""

import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

import samples
from calprompt.data import split_files
from calprompt.data.load import load_dataset
from calprompt.data.split_files import load_split, read_split_file, save_split, write_split_file
from calprompt.data.splits import base_novel, few_shot
from calprompt.errors import CalpromptError
from data import trees


def many(folder: Path) -> Path:
    """A split file of twelve classes of different sizes, its rows in no order; the images are not there."""
    rng = random.Random(3)
    split: dict[str, list] = {}
    for kind, most in (("train", 40), ("val", 9), ("test", 12)):
        rows = [[f"{c}/{kind}{n}.jpg", c, f"Klasse_{c} ü"] for c in range(12) for n in range(rng.randint(1, most))]
        rng.shuffle(rows)
        split[kind] = rows
    with (folder / "split_many.json").open("w") as file:  # as the public code writes it
        json.dump(split, file, indent=4, separators=(",", ": "))
    return folder / "split_many.json"


def test_reading_and_writing_keeps_every_byte(tmp_path: Path) -> None:
    path = many(tmp_path)
    write_split_file(tmp_path / "again.json", read_split_file(path))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def public_sampler(rows: list, shots: int) -> list:
    """As the public code draws: from Python's one stream, class by class in order of first appearance."""
    tracker = defaultdict(list)
    for row in rows:
        tracker[row[1]].append(row)
    drawn = []
    for own in tracker.values():
        drawn.extend(random.sample(own, shots) if len(own) >= shots else own)
    return drawn


def test_shots_of_a_split_file_are_the_public_ones(tmp_path: Path) -> None:
    path = many(tmp_path)
    split = json.loads(path.read_text())
    dataset = load_dataset(path, root=tmp_path)
    for seed in range(1, 31):
        for shots in (1, 2, 4, 8, 16):
            drawn = few_shot(dataset, shots, seed)
            random.seed(seed)
            for own, wanted in ((drawn.train, public_sampler(split["train"], shots)),
                                (drawn.val, public_sampler(split["val"], min(shots, 4)))):  # fmt: skip
                assert list(zip(own.images.paths, own.labels, strict=True)) == [(row[0], row[1]) for row in wanted]
            assert len(drawn.test) == len(split["test"])
    base, novel = base_novel(few_shot(dataset, 4, 1))
    assert (len(base.class_names), len(novel.class_names)) == (6, 6)
    assert set(base.train.images.paths) <= {row[0] for row in split["train"] if row[1] < 6}


def test_where_the_images_are(tmp_path: Path) -> None:
    file = trees.split_file(tmp_path, "dtd")
    renamed = file.rename(file.parent / "split_mine.json")
    dataset = load_dataset(renamed)
    assert (dataset.name, dataset.train.images.root, dataset.template) == ("split_mine", file.parent / "images", None)
    assert load_dataset(file.parent) == dataset
    moved = renamed.rename(tmp_path / "split_mine.json")
    assert load_dataset(moved, root=file.parent / "images").train == dataset.train
    with pytest.raises(CalpromptError, match=r"is neither in .* nor in a folder in it; say with root where"):
        load_dataset(moved)
    for name in ("a", "b"):
        trees.put(tmp_path / name / dataset.train.images.paths[0])
    with pytest.raises(CalpromptError, match="is in a/ and in b/; say which with root"):
        load_dataset(moved)


def test_two_split_files_in_a_folder(tmp_path: Path) -> None:
    for name in ("split_a.json", "split_b.json"):
        trees.write(tmp_path / name, "{}")
    with pytest.raises(CalpromptError, match=r"has split_a.json and split_b.json; name the one that is meant"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("digests", ["quick", "sha256"])
def test_a_saved_split_is_the_same_dataset_anywhere(tmp_path: Path, digests: str) -> None:
    drawn = few_shot(load_dataset(samples.picture_folder(tmp_path / "photos")), 2, 1)
    save_split(drawn, tmp_path / "photos" / "shots.json", digests=digests)
    assert load_split(tmp_path / "photos" / "shots.json") == load_dataset(tmp_path / "photos" / "shots.json")
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "shots.json").rename(tmp_path / "shots.json")
    found = load_split(tmp_path / "shots.json", tmp_path / "elsewhere")
    for own, wanted in zip(found.splits.values(), drawn.splits.values(), strict=True):
        assert (own.images.paths, own.labels) == (wanted.images.paths, wanted.labels)
    assert (found.name, found.class_names) == (drawn.name, drawn.class_names)
    assert load_split(tmp_path / "shots.json") == found  # it is the one folder beside it that has the first image
    assert (tmp_path / "shots.json").read_text().count("\n") > len(found.train) + len(found.test)


def test_base_and_template_are_saved_too(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos", each=4)
    trees.write(folder / "classes.yaml", "base: [fox, ant]\ntemplate: a {}.\n")
    save_split(load_dataset(folder), tmp_path / "split.json")
    assert (load_split(tmp_path / "split.json").base, load_split(tmp_path / "split.json").template) == ((0, 5), "a {}.")


def test_missing_and_changed_images_are_named(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos")
    drawn = few_shot(load_dataset(folder), 2, 1)
    save_split(drawn, tmp_path / "shots.json")
    gone, changed = drawn.train.images.paths[1], drawn.test.images.paths[3]
    (folder / gone).unlink()
    samples.picture(folder / changed, seed=4321)
    with pytest.raises(CalpromptError) as caught:
        load_split(tmp_path / "shots.json", folder)
    assert "of which 2 are missing or have changed" in str(caught.value)
    assert f"{gone} (No such file or directory)" in str(caught.value)
    assert f"{changed} (changed)" in str(caught.value)


def test_a_saved_split_that_was_edited(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos", each=4)
    save_split(load_dataset(folder), tmp_path / "split.json")
    text = (tmp_path / "split.json").read_text()

    def edited(old: str, new: str) -> Path:
        assert old in text
        return trees.write(tmp_path / "edited.json", text.replace(old, new, 1))

    for old, new, says in (
        ('"ant"', '"aunt"', "was changed after it was saved"),
        ('"train"', '"training"', "is damaged"),
        ('"format": "calprompt split 1"', '"format": "other"', "is not a saved split"),
    ):
        with pytest.raises(CalpromptError, match=says):
            load_split(edited(old, new), folder)


def test_a_saved_split_may_not_point_outside(tmp_path: Path) -> None:
    folder = samples.picture_folder(tmp_path / "photos", each=4)
    dataset = load_dataset(folder)
    rows = "".join(f"../photos/{path},{path.split('/')[0]}\n" for path in dataset.train.images.paths)
    outside = load_dataset(trees.write(tmp_path / "list" / "all.csv", rows))
    with pytest.raises(CalpromptError, match=r"has \.\./photos/.*, which is outside of its image folder .*list;"):
        save_split(outside, tmp_path / "split.json")
    assert not (tmp_path / "split.json").exists()
    save_split(dataset, tmp_path / "split.json")
    told = json.loads((tmp_path / "split.json").read_text())
    told["train"][0][0] = f"../photos/{told['train'][0][0]}"
    told["digest"] = split_files.json_digest({key: value for key, value in told.items() if key != "digest"})
    (tmp_path / "split.json").write_text(json.dumps(told))
    with pytest.raises(CalpromptError, match=r"lists \.\./photos/.*, which is outside of the image folder"):
        load_split(tmp_path / "split.json", folder)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError, match="is in memory"):
        save_split(load_dataset(samples.feature_file()), tmp_path / "split.json")
    with pytest.raises(CalpromptError, match="unknown kind of digest 'md5'"):
        save_split(load_dataset(samples.pictures()), tmp_path / "split.json", digests="md5")
    save_split(load_dataset(samples.pictures()), tmp_path / "split.json")
    with pytest.raises(CalpromptError, match="names its classes itself"):
        load_dataset(tmp_path / "split.json", root=samples.pictures(), classes="classes.txt")

"""The embedded datasets: what they promise about sizes, sides and bits, and that they are found like any other."""

import hashlib
import multiprocessing
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calprompt import pocket
from calprompt.data import catalogue
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.pocket import Sheet
from pretrain.icons import SETS as ICON_SETS

NAMES = pocket.names()
SHIFTS = [name for name in NAMES if "of" in pocket.sheet(name).record]
WHOLE = [name for name in NAMES if name not in SHIFTS]
UNSEEN_STUDIOS = {"openmoji", "emojione", "emojione1", "fxemoji", "streamline", "openmoji_black", "emojione_black"}


def test_there_are_eleven_datasets_and_four_shifts():
    assert len(WHOLE) >= 8 + 3
    assert len(SHIFTS) == 4


@pytest.mark.parametrize("name", WHOLE)
def test_sizes(name):
    sheet = pocket.sheet(name)
    count = len(sheet.class_names)
    assert 10 <= count <= 170
    assert len(set(sheet.class_names)) == count
    assert list(sheet.class_names) == sorted(sheet.class_names)
    assert (count // 2) * sheet.record["pictures"]["test"] >= 1500
    assert sheet.record["pictures"]["train"] >= 16
    assert sheet.record["pictures"]["val"] >= 4


@pytest.mark.parametrize("name", WHOLE)
def test_validation_pictures_are_the_recorded_ones_bit_for_bit(name):
    sheet = pocket.sheet(name)
    assert sum(1 for _ in sheet.checked("val")) == sheet.counts["val"]


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_the_recorded_ones_bit_for_bit(name):
    sheet = pocket.sheet(name)
    if name in SHIFTS:  # looked at in their files, which are made for what is below
        folder, found = pocket.folder(name), hashlib.sha256()
        for path, label in pocket.rows(name, "test"):
            with Image.open(folder / path) as picture:
                found.update(label.to_bytes(2, "big") + np.asarray(picture).tobytes())
        assert {"test": found.hexdigest()} == sheet.record["sha256"]
        return
    for split, count in sheet.counts.items():
        assert sum(1 for _ in sheet.checked(split)) == count


@pytest.mark.parametrize("name", NAMES)
def test_no_drawing_is_on_two_sides(name):
    sheet, sides = pocket.sheet(name), defaultdict(set)
    for row, (label, split, origin) in enumerate(sheet.record["drawings"]):
        sides[origin].add((label, split))
        sides[hashlib.sha256(sheet.drawings[row].tobytes()).digest()].add((label, split))
    repeated = {origin: where for origin, where in sides.items() if len({split for _, split in where}) > 1}
    assert not repeated


@pytest.mark.parametrize("name", NAMES)
def test_no_drawing_has_two_names(name):
    sheet, named = pocket.sheet(name), defaultdict(set)
    for row, (label, _, origin) in enumerate(sheet.record["drawings"]):
        named[origin].add(sheet.class_names[label])
        named[hashlib.sha256(sheet.drawings[row].tobytes()).digest()].add(sheet.class_names[label])
    repeated = [names for names in named.values() if len(names) > 1]
    assert repeated == ([{"Indonesia", "Monaco"}] if name == "flags" else [])  # two countries with one flag


def test_no_drawing_is_tested_with_that_some_dataset_learns_from():
    """Not even in black."""
    learned, tested = defaultdict(set), defaultdict(set)
    for name in NAMES:
        for _, split, origin in pocket.sheet(name).record["drawings"]:
            shown = split == "test" or name not in SHIFTS  # shifts of the same drawings name all, and show test ones
            if shown:
                (tested if split == "test" else learned)[origin.replace("_black", "")].add(name)
    assert not {origin: (learned[origin], tested[origin]) for origin in learned.keys() & tested.keys()}


@pytest.mark.parametrize("name", ["icons", "signs"])
def test_icons_on_two_sides_do_not_even_look_alike(name):
    """Sets copy from each other, so that other drawings may be the same but for a pixel."""
    sheet, by_label = pocket.sheet(name), defaultdict(list)
    for row, (label, split, _) in enumerate(sheet.record["drawings"]):
        by_label[label].append((split, sheet.drawings[row][..., 3].astype(int)))
    for icons in by_label.values():
        for number, (split, ink) in enumerate(icons):
            for other_split, other in icons[:number]:
                overlap = np.minimum(ink, other).sum() / np.maximum(ink, other).sum()
                assert split == other_split or overlap < 0.92  # 0.9 before colours were made coarse


@pytest.mark.parametrize("name", NAMES)
def test_every_drawing_is_of_a_source_that_pretraining_left_out(name):
    for _, _, origin in pocket.sheet(name).record["drawings"]:
        source, *rest = origin.split("/")
        if source == "quickdraw":
            assert int(rest[-1]) >= 15
        elif source == "cifar10":
            assert rest[0] == "test"
        elif source == "fashion":
            assert int(rest[-1]) >= 500
        else:
            assert source in {*UNSEEN_STUDIOS, *ICON_SETS, "mnist"}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "photos"])  # which are kept in fewer bits
def test_no_drawing_was_seen_in_pretraining(name):
    held = Path(__file__).with_name("seen.bin").read_bytes()
    seen = {held[i : i + 8] for i in range(0, len(held), 8)}
    assert len(seen) > 15_000
    for picture in pocket.sheet(name).drawings:
        grey = len(picture) == 28  # then the last channel is ink, or the same as the others
        visible = picture[..., -1] if grey else np.where(picture[..., 3:] > 0, picture, 0)
        assert hashlib.sha256(np.ascontiguousarray(visible).tobytes()).digest()[:8] not in seen


@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_show_classes_of_their_dataset(name):
    sheet = pocket.sheet(name)
    assert set(sheet.class_names) <= set(pocket.sheet(sheet.record["of"]).class_names)
    dataset = load_dataset(f"pocket_{name}")
    assert dataset.test_only
    assert len(dataset.test) == sheet.counts["test"] >= 1500


def test_a_dataset_is_loaded_like_any_other():
    dataset = load_dataset("pocket_photos")
    sheet = pocket.sheet("photos")
    assert dataset.class_names == sheet.class_names
    assert dataset.template == sheet.record["template"]
    assert {kind: len(split) for kind, split in dataset.splits.items()} == sheet.counts
    with pytest.raises(CalpromptError, match="root"):
        load_dataset("dtd")


def test_check_finds_nothing_wrong_and_a_removed_picture():
    entry = catalogue.get("pocket_clothes")
    assert not catalogue.check(entry, None).problems
    removed = pocket.folder("clothes") / pocket.rows("clothes", "test")[0][0]
    held = removed.read_bytes()
    removed.unlink()
    report = catalogue.check(entry, None)
    removed.write_bytes(held)
    assert report.problems
    assert str(removed.name) in " ".join(report.problems)
    assert f"Remove {pocket.folder('clothes')}; it is made again" in " ".join(report.problems)


def _make(folder: str, queue) -> None:
    os.environ["CALPROMPT_CACHE"] = folder
    queue.put(str(pocket.folder("clothes")))


def test_two_processes_make_it_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [context.Process(target=_make, args=(str(tmp_path), queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    places = {queue.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(places) == 1
    made = Path(places.pop())
    assert [path.name for path in (tmp_path / "pocket").iterdir()] == [made.name]
    assert len(list(made.rglob("*.bmp"))) == sum(pocket.sheet("clothes").counts.values())


def test_what_a_killed_process_left_goes_and_what_another_is_making_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path))
    home = tmp_path / "pocket"
    for left in (".clothes-0123456789ab-dead", ".clothes-0123456789ab-made"):
        (home / left / "train").mkdir(parents=True)
    os.utime(home / ".clothes-0123456789ab-dead", (0, 0))
    made = pocket.folder("clothes")
    assert {path.name for path in home.iterdir()} == {made.name, ".clothes-0123456789ab-made"}


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CalpromptError, match=r"'pocket_clothes' to .*file/pocket: .*set CALPROMPT_CACHE"):
        pocket.folder("clothes")


def test_another_name_of_a_class_makes_another_folder():
    sheet = pocket.sheet("clothes")
    renamed = {**sheet.record, "classes": ["gown", *sheet.class_names[1:]]}
    assert Sheet(sheet.name, renamed, sheet.folder).digest != sheet.digest


def test_a_damaged_sheet_is_noticed():
    sheet = pocket.sheet("clothes")
    record = {**sheet.record, "sha256": {**sheet.record["sha256"], "val": "0" * 64}}
    with pytest.raises(CalpromptError, match=r"val pictures of the embedded dataset 'clothes'.*damaged"):
        list(Sheet(sheet.name, record, sheet.folder).checked("val"))


def test_a_sheet_that_cannot_be_read_is_named_and_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("CALPROMPT_CACHE", str(tmp_path))
    held = pocket.sheet("clothes")
    monkeypatch.setattr("calprompt.pocket.sheet", lambda name: Sheet(held.name, held.record, tmp_path))
    for damaged in (False, True):
        if damaged:
            (tmp_path / "clothes.webp").write_bytes(b"RIFF")
        with pytest.raises(CalpromptError, match=r"cannot read .*clothes.webp.*install it again"):
            pocket.folder("clothes")
    assert not list((tmp_path / "pocket").glob("*"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"title": "clothes", "cla', "Unterminated string"),
        (b"\xff\xfe", "codec can't decode"),
        (b"[]", "it has no 'template'"),
        (b'{"template": "", "scene": null, "pictures": {}, "classes": [], "drawings": [], "side": 28}', "no 'sha256'"),
        (None, "No such file"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, content, why):
    if content is not None:
        (tmp_path / "clothes.json").write_bytes(content)
    with pytest.raises(CalpromptError, match=rf"cannot read .*clothes\.json: .*{why}.*; .* install it again"):
        Sheet.read(tmp_path, "clothes")


def test_a_sheet_of_another_size_is_named(tmp_path):
    held = pocket.sheet("clothes")
    Image.new("L", (64 * 28, 2 * 28)).save(tmp_path / "clothes.webp")
    with pytest.raises(CalpromptError, match=r"clothes\.webp: it is 1792 x 56 pixels, expected 1792 x \d+; .*again"):
        list(Sheet(held.name, held.record, tmp_path).pictures("val"))


def test_the_package_stays_small():
    files = [path for path in Path(pocket.__file__).parent.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 50_000_000
    assert max(path.stat().st_size for path in files) < 25_000_000
    assert sum(path.stat().st_size for path in files if "model" in path.parts) < 20_000_000

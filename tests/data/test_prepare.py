"""What `data prepare` derives: splits from official annotations by the published rules, names, frames, patches."""

import json
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from calprompt.data.catalogue import Counts, check, get
from calprompt.data.catalogue.prepare import corners, diagnosis, split_rows
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.progress import silent
from data import trees


def prepare(key: str, root: Path) -> list[str]:
    entry = get(key)
    assert entry.prepare is not None
    return entry.prepare(entry, entry.locate(root), silent)


def class_folders(root: Path, *names: str, each: int = 10) -> None:
    for name in names:
        for number in range(each):
            trees.put(root / name / f"{number}.jpg")


def cars(folder: Path) -> None:
    def rows(label: int, *images: str) -> np.ndarray:
        return np.array([[(image, label) for image in images]], dtype=[("fname", object), ("class", object)])

    train = [rows(label, *(f"{label}{n:04d}.jpg" for n in range(5))) for label in (1, 2)]
    test = [rows(label, f"{label}9999.jpg") for label in (2, 1)]
    (folder / "devkit").mkdir(parents=True)
    names = np.array([["AM General Hummer SUV 2000", "Acura RL Sedan 2012"]], dtype=object)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": names})
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": np.concatenate(train, axis=1)})
    savemat(folder / "cars_test_annos_withlabels.mat", {"annotations": np.concatenate(test, axis=1)})
    for inside in ("cars_train", "cars_test"):
        (folder / inside).mkdir()


def annotations(key: str, root: Path) -> Path:
    """The raw files of a dataset, two classes of ten images, without its fixed split."""
    folder = root / get(key).folders[0]
    if key == "caltech101":
        class_folders(folder / "101_ObjectCategories", "BACKGROUND_Google", "Faces_easy", "airplanes", "Faces")
    elif key == "eurosat":
        class_folders(folder / "2750", "SeaLake", "AnnualCrop")
    elif key == "oxford_pets":
        for kind, numbers in (("trainval", range(10)), ("test", (99, 98, 97))):
            lines = [
                f"{name}_{n} {label} 1 1\n"
                for n in numbers
                for label, name in ((1, "Abyssinian"), (2, "great_pyrenees"))
            ]
            trees.write(folder / "annotations" / f"{kind}.txt", "".join(lines))
        (folder / "images").mkdir()
    elif key == "stanford_cars":
        cars(folder)
    elif key == "oxford_flowers":
        (folder / "jpg").mkdir(parents=True)
        savemat(folder / "imagelabels.mat", {"labels": np.array([[2, 1] * 10])})
        trees.write(folder / "cat_to_name.json", json.dumps({"1": "pink primrose", "2": "sweet pea"}))
    elif key == "sun397":
        (folder / "SUN397").mkdir(parents=True)
        trees.write(folder / "ClassName.txt", "/a/abbey\n/a/apse/indoor\n")
        for kind, numbers in (("Training", range(10)), ("Testing", (99, 98))):
            lines = [f"/{name}/sun_{n}.jpg\n" for name in ("a/apse/indoor", "a/abbey") for n in numbers]
            trees.write(folder / f"{kind}_01.txt", "".join(lines))
    else:
        (folder / "UCF-101-midframes").mkdir(parents=True)
        lists = folder / "ucfTrainTestlist"
        trees.write(lists / "classInd.txt", "1 ApplyEyeMakeup\n2 YoYo\n")
        for kind, numbers in (("train", range(10)), ("test", (99,))):
            lines = [f"{name}/v_{name}_c{n}.avi 1\n" for name in ("YoYo", "ApplyEyeMakeup") for n in numbers]
            trees.write(lists / f"{kind}list01.txt", "".join(lines))
    return folder


@pytest.mark.parametrize(
    ("key", "names", "first", "sizes"),
    [
        ("caltech101", ["face", "airplane"], "Faces/", (10, 4, 6)),
        ("eurosat", ["Annual Crop Land", "Sea or Lake"], "AnnualCrop/", (10, 4, 6)),
        ("oxford_pets", ["abyssinian", "great_pyrenees"], "Abyssinian_", (16, 4, 6)),
        ("stanford_cars", ["2000 AM General Hummer SUV", "2012 Acura RL Sedan"], "cars_train/1", (8, 2, 2)),
        ("oxford_flowers", ["pink primrose", "sweet pea"], "image_000", (10, 4, 6)),
        ("sun397", ["abbey", "indoor apse"], "a/abbey/sun_", (16, 4, 4)),
        ("ucf101", ["Apply_Eye_Makeup", "Yo_Yo"], "Apply_Eye_Makeup/v_ApplyEyeMakeup_c", (16, 4, 2)),
    ],
)
def test_a_new_split_follows_the_published_rules(
    tmp_path: Path, key: str, names: list[str], first: str, sizes: tuple[int, ...]
) -> None:
    folder = annotations(key, tmp_path)
    assert any("split of your own, not comparable" in line for line in prepare(key, tmp_path))
    (file,) = folder.glob("split_own_*.json")
    before = file.read_bytes()
    dataset = load_dataset(key, root=tmp_path)
    assert (dataset.name, list(dataset.class_names)) == (f"{key}-own-split", names)
    assert tuple(len(split) for split in dataset.splits.values()) == sizes
    assert dataset.train.images.paths[0].startswith(first)
    listed = [path for split in dataset.splits.values() for path in split.images.paths]
    assert len(set(listed)) == len(listed)
    report = check(get(key), tmp_path)
    assert "do not compare" in report.notes[0]
    assert any("there already" in line for line in prepare(key, tmp_path))
    file.unlink()
    prepare(key, tmp_path)
    assert file.read_bytes() == before


def test_the_published_split_overrides_a_new_one(tmp_path: Path) -> None:
    trees.make(tmp_path, "eurosat")
    assert prepare("eurosat", tmp_path) == [f"{tmp_path / 'eurosat' / 'split_zhou_EuroSAT.json'} is there already"]
    (tmp_path / "eurosat" / "split_own_EuroSAT.json").write_text("nonsense")
    assert load_dataset("eurosat", root=tmp_path).name == "eurosat"


def test_nothing_is_derived_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "dtd").mkdir()
    with pytest.raises(CalpromptError, match="unpack the images first"):
        prepare("dtd", tmp_path)
    folder = annotations("sun397", tmp_path)
    (folder / "ClassName.txt").write_text("/a/abbey\n")
    with pytest.raises(CalpromptError, match=r"the class of /a/apse/indoor/sun_0.jpg is not in ClassName.txt"):
        prepare("sun397", tmp_path)


def test_imagenet_names_are_clips(tmp_path: Path) -> None:
    folder = trees.imagenet(tmp_path)
    (folder / "classnames.txt").unlink()
    with pytest.raises(CalpromptError, match="has 8 folders, and there are names for 1000 classes"):
        prepare("imagenet", tmp_path)
    for number in range(992):
        (folder / "images" / "train" / f"n9{number:07d}").mkdir()
    assert prepare("imagenet", tmp_path) == [f"made {folder / 'classnames.txt'}"]
    lines = (folder / "classnames.txt").read_text().splitlines()
    assert lines[0] == "n01440764 tench"
    assert len(lines) == 1000


def test_variants_are_the_sorted_names_of_the_lists(tmp_path: Path) -> None:
    folder = trees.aircraft(tmp_path)
    before = load_dataset("fgvc_aircraft", root=tmp_path)
    (folder / "variants.txt").unlink()
    assert prepare("fgvc_aircraft", tmp_path) == [f"made {folder / 'variants.txt'}: 5 variants"]
    assert load_dataset("fgvc_aircraft", root=tmp_path) == before


def video(path: Path, frames: int) -> None:
    """A real one, as UCF101's are: every frame a red of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame.from_image(Image.new("RGB", (32, 32), (30 * number, 0, 0)))
            for packet in stream.encode(frame):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)


def test_ucf101_frames_are_the_middle_ones(tmp_path: Path) -> None:
    folder = tmp_path / "ucf101"
    video(folder / "UCF-101" / "ApplyEyeMakeup" / "v_1.avi", 5)
    video(folder / "UCF-101" / "YoYo" / "v_2.avi", 8)
    assert prepare("ucf101", tmp_path) == [f"made 2 of 2 frames in {folder / 'UCF-101-midframes'}"]
    for place, red in (("Apply_Eye_Makeup/v_1.jpg", 60), ("Yo_Yo/v_2.jpg", 120)):
        with Image.open(folder / "UCF-101-midframes" / place) as frame:
            assert abs(frame.getpixel((8, 8))[0] - red) < 12
    assert prepare("ucf101", tmp_path)[0].startswith("made 0 of 2 frames")
    trees.write(folder / "UCF-101" / "YoYo" / "v_3.avi", "no video")
    with pytest.raises(CalpromptError, match=r"v_3.avi cannot be decoded"):
        prepare("ucf101", tmp_path)
    (tmp_path / "other" / "ucf101").mkdir(parents=True)
    with pytest.raises(CalpromptError, match="has no videos"):
        prepare("ucf101", tmp_path / "other")


def test_preparing_videos_without_a_decoder_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees.write(tmp_path / "ucf101" / "UCF-101" / "YoYo" / "v_1.avi", "")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CalpromptError, match=r"needs PyAV: pip install 'calprompt\[video\]'"):
        prepare("ucf101", tmp_path)


def nuclei(neoplastic: int, others: int = 0) -> np.ndarray:
    mask = np.zeros((16, 16, 6))
    mask[..., 5] = 1
    mask[:8, :, 5] = 0
    mask[0, :neoplastic, 0] = np.arange(1, neoplastic + 1)
    mask[1 : 1 + -(-others // 16), :, 1].flat[:others] = np.arange(1, others + 1)
    return mask


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (nuclei(0), None),
        (nuclei(0, 3), "benign"),
        (nuclei(9), None),
        (nuclei(10), "malignant"),
        (nuclei(10, 22), "malignant"),  # 10 of 33, the background counting as one
        (nuclei(10, 23), None),
        (nuclei(1, 3), None),
    ],
)
def test_patches_of_pannuke(mask: np.ndarray, kind: str | None) -> None:
    assert diagnosis(mask) == kind


def test_pannuke_is_split_as_in_the_public_preparation() -> None:
    rows = [(f"tissue {n % 3}", "malignant" if n < 40 else "benign") for n in range(97)]
    shuffled = [rows[i] + (i,) for i in np.random.RandomState(1).choice(97, size=97, replace=False)]
    train = set()
    for tissue in dict.fromkeys(row[0] for row in shuffled):
        for kind in ("benign", "malignant"):
            own = [row for row in shuffled if row[:2] == (tissue, kind)]
            order = np.random.RandomState(1).choice(len(own), size=len(own), replace=False)
            train |= {own[i][2] for i in order[: int(len(own) * 0.7)]}
    assert split_rows(rows) == train


def test_pannuke_from_its_arrays(tmp_path: Path) -> None:
    folder = tmp_path / "PanNuke"
    for fold in (1, 2, 3):
        masks = np.stack([nuclei(0), *[nuclei(12)] * 4, *[nuclei(0, 3)] * 3])
        images = folder / f"Fold {fold}" / "images" / f"fold{fold}"
        images.mkdir(parents=True)
        (folder / f"Fold {fold}" / "masks" / f"fold{fold}").mkdir(parents=True)
        np.save(images / "images.npy", np.full((8, 16, 16, 3), 20.0 * fold))
        np.save(images / "types.npy", np.array(["Bile-duct", *["HeadNeck"] * 7]))
        np.save(folder / f"Fold {fold}" / "masks" / f"fold{fold}" / "masks.npy", masks)
    assert "12 malignant, 9 benign, of which 14 train" in prepare("pannuke", tmp_path)[0]
    dataset = load_dataset("pannuke", root=tmp_path)
    assert dataset.class_names == ("benign", "malignant")
    assert (len(dataset.train), len(dataset.test)) == (14, 7)
    assert prepare("pannuke", tmp_path)[0].endswith("is there already")
    assert not check(get("pannuke"), tmp_path).problems
    (tmp_path / "lost" / "pannuke").mkdir(parents=True)
    with pytest.raises(CalpromptError, match=r"has no files fold1/images.npy; unpack the three folds"):
        prepare("pannuke", tmp_path / "lost")


def slide(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (520, 470), colour).save(path)


def test_digestpath_from_its_slides(tmp_path: Path) -> None:
    folder = tmp_path / "DigestPath2019"
    tissue, blank = (180, 90, 150), (240, 240, 240)
    for number in range(10):
        slide(folder / "tissue-train-neg" / f"n{number}.jpg", blank if number == 0 else tissue)
        slide(folder / "tissue-train-pos-v1" / f"p{number}.jpg", tissue)
        slide(folder / "tissue-train-pos-v1" / f"p{number}_mask.jpg", (0, 0, 0) if number == 1 else (255, 255, 255))
    left = folder / ".patches" / "train" / "benign" / "left.png"  # by one that was stopped
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    (line,) = prepare("digestpath", tmp_path)
    dataset = load_dataset("digestpath", root=tmp_path)
    assert (len(dataset.train) + len(dataset.test), dataset.class_names) == (19, ("benign", "malignant"))
    made = {path.name for path in (folder / "patches").rglob("*.png")}
    assert "n0_2_00000.png" not in made
    assert (folder / "patches").joinpath("train", "benign", "p1_2_00000.png").exists() or (
        folder / "patches" / "test" / "benign" / "p1_2_00000.png"
    ).exists()
    slides = [{path.rpartition("/")[2].split("_")[0] for path in s.images.paths} for s in (dataset.train, dataset.test)]
    assert not slides[0] & slides[1]
    assert "malignant to train" in line
    (folder / "patches").rename(folder / "old")
    (folder / "tissue-train-pos-v1" / "p3_mask.jpg").unlink()
    with pytest.raises(CalpromptError, match=r"p3_mask.jpg is not there; every slide of tissue-train-pos-v1 needs"):
        prepare("digestpath", tmp_path)


def test_patch_corners_overlap_and_stay_inside() -> None:
    assert list(corners(225, 225)) == [(0, 0)]
    assert list(corners(224, 500)) == []
    assert list(corners(430, 430)) == [(0, 0), (0, 201), (201, 0), (201, 201)]


def test_counts_of_nothing_published_are_not_compared(tmp_path: Path) -> None:
    trees.make(tmp_path, "digestpath")
    assert get("digestpath").counts == Counts(2, val=0, base=0)
    assert not check(get("digestpath"), tmp_path).problems

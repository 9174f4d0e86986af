"""The catalogue: every dataset is read as the field reads it, and every kind of damage is told by itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from calprompt.data import catalogue
from calprompt.data.catalogue import FIELD, Counts, check, get
from calprompt.data.load import load_dataset
from calprompt.data.splits import base_novel, few_shot
from calprompt.errors import CalpromptError
from data import trees

KEYS = [entry.key for entry in FIELD]
PHOTO = "a photo of a {}."
TEMPLATES = {  # public name: tables A, B and C
    "OxfordPets": ("a photo of a {}, a type of pet.", None, "a type of pet, a photo of a {}."),
    "OxfordFlowers": ("a photo of a {}, a type of flower.", None, "a type of flower, a photo of a {}."),
    "FGVCAircraft": ("a photo of a {}, a type of aircraft.", None, "a type of aircraft, a photo of a {}."),
    "DescribableTextures": ("{} texture.", "a photo of a {}, a type of texture.", "a texture of {}."),
    "EuroSAT": ("a centered satellite photo of {}.", None, None),
    "Food101": ("a photo of {}, a type of food.", None, "a type of food, a photo of {}."),
    "UCF101": ("a photo of a person doing {}.", None, None),
    "Kather": ("An H&E image patch of {}.", None, None),
    "PanNuke": ("An H&E image of {} tissue.", None, None),
    "DigestPath": ("An H&E image patch of {} tissue.", None, None),
}
SIZES = {  # classes base + novel, train, val, test, test of base and novel
    "ImageNet": (500, 500, 1281167, 0, 50000, 25000, 25000),
    "Caltech101": (50, 50, 4128, 1649, 2465, 1549, 916),
    "OxfordPets": (19, 18, 2944, 736, 3669, 1881, 1788),
    "StanfordCars": (98, 98, 6509, 1635, 8041, 4002, 4039),
    "OxfordFlowers": (51, 51, 4093, 1633, 2463, 1053, 1410),
    "Food101": (51, 50, 50500, 20200, 30300, 15300, 15000),
    "FGVCAircraft": (50, 50, 3334, 3333, 3333, 1666, 1667),
    "SUN397": (199, 198, 15880, 3970, 19850, 9950, 9900),
    "DescribableTextures": (24, 23, 2820, 1128, 1692, 864, 828),
    "EuroSAT": (5, 5, 13500, 5400, 8100, 4200, 3900),
    "UCF101": (51, 50, 7639, 1898, 3783, 1934, 1849),
}


def names_of(key: str) -> list[str]:
    if key in trees.SPLIT_FILES:
        return [name for _, name in trees.SPLIT_FILES[key][3]]
    wnids = list(trees.WNIDS.values())
    if key in trees.VARIANTS:
        return [wnids[label] for label in trees.VARIANTS[key][1]]
    if key == "kather":
        return [
            "adipose tissue", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
            "cancer-associated stroma", "colorectal adenocarcinoma epithelium",
        ]  # fmt: skip
    return {"imagenet": wnids, "fgvc_aircraft": trees.AIRCRAFT}.get(key, ["benign", "malignant"])


@pytest.mark.parametrize("key", KEYS)
def test_every_dataset_is_read_from_its_own_layout(tmp_path: Path, key: str) -> None:
    trees.make(tmp_path, key)
    dataset = load_dataset(key, root=tmp_path)
    names = names_of(key)
    assert (dataset.name, list(dataset.class_names), dataset.template) == (key, names, get(key).templates["coop"])
    test_only = key in trees.VARIANTS
    val = trees.VAL if key in trees.SPLIT_FILES or key == "fgvc_aircraft" else 0
    wanted = {"train": 0 if test_only else trees.TRAIN, "val": val, "test": trees.TEST}
    for kind, each in wanted.items():
        split = dataset.splits[kind]
        assert split.labels == tuple(label for label in range(len(names)) for _ in range(each))
        assert all((split.images.root / path).is_file() for path in split.images.paths)
    assert dataset.test_only is test_only
    assert not check(replace(get(key), counts=Counts(len(names))), tmp_path).problems


@pytest.mark.parametrize("key", KEYS)
def test_the_cut_into_base_and_novel(tmp_path: Path, key: str) -> None:
    trees.make(tmp_path, key)
    dataset = load_dataset(key, root=tmp_path)
    names = names_of(key)
    if len(names) < 4:
        with pytest.raises(CalpromptError, match="base and novel need two each"):
            base_novel(dataset)
        return
    base, novel = base_novel(dataset)
    # of five classes of ImageNet-A three are in the second half of ImageNet: the cut is 2 and 3, not 3 and 2
    half = list(trees.WNIDS.values())[:4]
    first = [name for name in names if name in half] if key in trees.VARIANTS else names[: -(-len(names) // 2)]
    assert list(base.class_names) == first
    assert list(novel.class_names) == [name for name in names if name not in first]
    assert len(base.test) == trees.TEST * len(first)


def test_templates_are_those_of_the_three_tables(tmp_path: Path) -> None:
    for entry in FIELD:
        a, b, c = TEMPLATES.get(entry.public, (PHOTO, None, None))
        assert list(entry.templates.values()) == [a, b or a, c or a]
    trees.make(tmp_path, "dtd")
    with pytest.raises(CalpromptError, match="unknown table of templates 'd'"):
        load_dataset("dtd", root=tmp_path).template_of("d")


def test_sizes_are_the_published_ones() -> None:
    for public, (base, novel, *sizes) in SIZES.items():
        counts = get(public).counts
        assert counts.cut == (base, novel)
        assert [counts.train, counts.val, counts.test, counts.base_test, counts.novel_test] == sizes
        assert sizes[3] + sizes[4] == sizes[2]


def test_every_name_leads_to_its_dataset() -> None:
    assert catalogue.available() == sorted(entry.key for entry in catalogue.ENTRIES)
    for entry in catalogue.ENTRIES:
        for name in (entry.key, entry.public, entry.key.replace("_", "-"), entry.key.upper(), *entry.names):
            assert get(name) is entry
    with pytest.raises(CalpromptError, match="Did you mean 'dtd'"):
        get("dtt")


@pytest.mark.parametrize(
    ("key", "made", "kept"),
    [
        ("food101", "food-101", "food101"),
        ("food101", "food-101", "Food_101"),
        ("dtd", "dtd", "dtd/dtd"),
        ("fgvc_aircraft", "fgvc_aircraft", "fgvc-aircraft-2013b/data"),
        ("oxford_flowers", "oxford_flowers", "flowers-102"),
        ("oxford_pets", "oxford_pets", "oxford-iiit-pet"),
        ("imagenet_a", "imagenet-adversarial/imagenet-a", "imagenet-a"),
    ],
)
def test_layouts_that_people_have(tmp_path: Path, key: str, made: str, kept: str) -> None:
    trees.make(tmp_path / "made", key)
    trees.imagenet(tmp_path)
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / "made" / made).rename(tmp_path / kept)
    assert list(load_dataset(key, root=tmp_path).class_names) == names_of(key)


def test_root_may_be_the_folder_itself_and_a_folder_may_be_the_path(tmp_path: Path) -> None:
    folder = trees.make(tmp_path, "eurosat").rename(tmp_path / "land")
    assert load_dataset("eurosat", root=folder) == load_dataset(folder)
    assert load_dataset(folder).template == "a centered satellite photo of {}."


def test_imagenet_names_may_repeat_and_its_val_stays_empty(tmp_path: Path) -> None:
    folder = trees.imagenet(tmp_path)
    text = (folder / "classnames.txt").read_text()
    (folder / "classnames.txt").write_text(text.replace("kite", "owl"))
    dataset = load_dataset("imagenet", root=tmp_path)
    assert dataset.class_names.count("owl") == 2
    assert len(few_shot(dataset, 2, 1).val) == 0


def test_imagenet_variants_use_the_class_names_of_imagenet(tmp_path: Path) -> None:
    trees.imagenet(tmp_path)
    folder = trees.variant(tmp_path, "imagenet_r")
    (folder / "classnames.txt").unlink()
    assert list(load_dataset("imagenet_r", root=tmp_path).class_names) == names_of("imagenet_r")


def lose(*places: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        for place in places:
            (folder / place).rename(folder / (Path(place).name + ".lost"))

    return damage


def edit(place: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / place).read_text()
        assert old in text
        (folder / place).write_text(text.replace(old, new, 1))

    return damage


def add(place: str) -> Callable[[Path], None]:
    return lambda folder: (trees.put(folder / place), None)[1]


def flat_val(folder: Path) -> None:
    (folder / "images" / "val").rename(folder / "images" / "old")
    trees.put(folder / "images" / "val" / "ILSVRC2012_val_1.JPEG")


DTD = "split_zhou_DescribableTextures.json"
DAMAGE = [
    ("dtd", lose(DTD), f"{DTD}: not there. Get the fixed split"),
    ("dtd", lose("images"), "images/: not there. Unpack the images"),
    ("dtd", edit(DTD, "[", ""), "is not JSON"),
    ("dtd", edit(DTD, '"val"', '"validation"'), "is not a split file; expected"),
    ("dtd", edit(DTD, '"banded"', "7"), r"train row 0 is \['banded/banded_0000.jpg', 0, 7\], expected \[path, label"),
    ("dtd", edit(DTD, '"banded"', '"striped"'), "label 0 is 'striped' and, for banded/banded_0001.jpg, 'banded'"),
    ("dtd", edit(DTD, "            3,", "            9,"), "label 9|labels 0 to 4, and 4 is missing"),
    ("stanford_cars", lose("cars_test"), "cars_test/: not there"),
    ("imagenet", lose("classnames.txt"), "classnames.txt: not there.* 'calprompt data prepare imagenet' makes it"),
    ("imagenet", lose("images/val"), "images/val/: not there"),
    ("imagenet", flat_val, "val/: has no folders with images. Unpack the images there, one folder per class"),
    ("imagenet", lose("images/val/n01440764"), "val/n01440764/ is missing; expected the folders n01440764"),
    ("imagenet", edit("classnames.txt", "n01440764 tench", "n01440764"), "such as 'n01440764 tench', got 'n01440764'"),
    ("imagenet", edit("classnames.txt", "n01440764 tench\n", ""), "n01440764/ is not a class of .*classnames.txt"),
    ("imagenet_a", lose("imagenet-a"), "imagenet-a/: not there"),
    ("imagenet_a", lose("classnames.txt"), "Copy the one of ImageNet"),
    ("imagenet_a", add("imagenet-a/n99999999/1.JPEG"), "n99999999/ is not a class of"),
    ("imagenetv2", add("imagenetv2-matched-frequency-format-val/1000/1.jpeg"), "1000/ is not a class of .*folders 0"),
    ("fgvc_aircraft", lose("variants.txt"), "variants.txt: not there"),
    ("fgvc_aircraft", lose("images_variant_val.txt"), "images_variant_val.txt: not there"),
    ("fgvc_aircraft", lose("images"), "images/: not there"),
    ("fgvc_aircraft", edit("images_variant_test.txt", "A300B4", "A300"), "'A300' of image .* is not in variants.txt"),
    ("kather", lose("CRC-VAL-HE-7K"), "CRC-VAL-HE-7K/: not there"),
    ("kather", lose("CRC-VAL-HE-7K/TUM"), "TUM/ is missing; expected the folders ADI"),
    ("kather", add("NCT-CRC-HE-100K/XYZ/1.tif"), "XYZ/ is not a class"),
    ("pannuke", lose("patches"), "Make the patches with 'calprompt data prepare pannuke'"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "damage", "says"), DAMAGE)
def test_check_reports_every_kind_of_damage(
    tmp_path: Path, key: str, damage: Callable[[Path], None], says: str
) -> None:
    damage(trees.make(tmp_path, key))
    with pytest.raises(CalpromptError, match=says):
        load_dataset(key, root=tmp_path)
    problems = check(get(key), tmp_path).problems
    with pytest.raises(CalpromptError, match=says):
        raise CalpromptError("\n".join(problems))


def test_check_says_everything_at_once(tmp_path: Path) -> None:
    folder = trees.make(tmp_path, "dtd")
    for name in ("banded_0001", "banded_0004"):
        (folder / "images" / "banded" / f"{name}.jpg").unlink()
    report = check(get("dtd"), tmp_path)
    assert [line.split(";")[0] for line in report.problems[:6]] == [
        "classes: 4, expected 47",
        "train images: 12, expected 2,820",
        "val images: 4, expected 1,128",
        "test images: 8, expected 1,692",
        "base test images: 4, expected 864",
        "novel test images: 4, expected 828",
    ]
    assert "get it again" in report.problems[0]
    assert report.problems[6].startswith("2 of 24 images are not in ")
    assert "banded/banded_0001.jpg, banded/banded_0004.jpg" in report.problems[6]
    lose("images")(folder)
    (folder / DTD).unlink()
    assert len(check(get("dtd"), tmp_path).problems) == 2


def test_a_missing_dataset_says_where_to_get_it(tmp_path: Path) -> None:
    for says, root in (
        ("there is no folder", tmp_path / "no"),
        ("has no folder of EuroSAT; expected eurosat", tmp_path),
    ):
        with pytest.raises(CalpromptError, match=says):
            load_dataset("eurosat", root=root)
        assert "Get it from the EuroSAT repository" in check(get("eurosat"), root).problems[0]
    with pytest.raises(CalpromptError, match="dtd is a dataset of the catalogue; say where datasets are with root"):
        load_dataset("dtd")
    with pytest.raises(CalpromptError, match=r"no data at eurosatt; .*did you mean 'eurosat'\?"):
        load_dataset("eurosatt")

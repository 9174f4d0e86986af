"""From packages to what pretraining sees and what the datasets show: small packages in the form of the real ones."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from calprompt.pocket import Sheet
from pretrain import icons, pool, sheets, studios
from pretrain.__main__ import main
from pretrain.pool import MEDIA, Pool, assemble
from pretrain.selection import CIFAR10, FASHION, SHIFTS, SKETCHES, Choice

ANIMALS = {"1f431": "cat", "1f436": "dog", "1f404": "cow"}
CLOTHES = 3  # that pretraining sees here
CHOICES = (
    Choice("animals", "emoji", ("mammals",), "a {}.", 4, 2, 5),
    Choice("sketches", "sketch", ("cat", "kite"), "a sketch of a {}.", 4, 2, 5),
    Choice("photos", "cifar10", (), "a photo of a {}.", 2, 1, 3),
    Choice("clothes", "fashion", (), "a photo of a {}.", 1, 1, 2),
    Choice("icons", "icons", ("bell", "key"), "an icon of a {}.", 6, 2, 5),
    Choice("digits", "digits", (), "the number {}.", 2, 1, 3),
)


def noise(*names: object, shape: tuple[int, ...]) -> np.ndarray:
    """Pixels that depend on these names."""
    seed = int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:8], "big")
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def as_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three animals and a kite by every studio, and some of everything else."""
    root = tmp_path_factory.mktemp("packages")
    english = root / "emojibase" / "package" / "en"
    as_json(english / "messages.json", {"subgroups": [{"order": 7, "message": "mammals"}]})
    as_json(english / "shortcodes" / "emojibase.json", {"1F431": ["kitty", "tom_cat"], "1F436": "puppy"})
    for name in ("github", "cldr"):
        as_json(english / "shortcodes" / f"{name}.json", {})
    emoji = [
        {"label": name, "hexcode": code.upper(), "emoji": chr(int(code, 16)), "group": 3, "subgroup": 7, "tags": []}
        for code, name in ANIMALS.items()
    ]
    emoji.append({"label": "kite", "hexcode": "1FA81", "emoji": "\U0001fa81", "group": 6, "subgroup": 1})
    emoji.append({"label": "light skin tone", "hexcode": "1F3FB", "emoji": "\U0001f3fb", "group": 2, "subgroup": 7})
    as_json(english / "data.json", emoji)
    as_json(root / "emojilib" / "package/dist/emoji-en-US.json", {"\U0001f431": ["cat", "meow"]})

    codes = {**ANIMALS, "1fa81": "kite", "1f3fb": "light skin tone"}
    for studio in (*studios.SEEN, *studios.UNSEEN, *studios.BLACK):
        if studio in studios._FILES:
            package, pattern = studios._FILES[studio]
            for code in codes:
                file = root / package / "package" / pattern.replace("*", code.upper())
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(f"{studio} {code}")
        else:
            drawn = {name.replace(" ", "-"): {"body": f"{studio} {name}"} for name in codes.values()}
            as_json(root / studio / "package" / "icons.json", {"icons": drawn})
    as_json(root / "gameicons/package/icons.json", {"icons": {"cat": {"body": "game"}, "war-axe": {"body": "axe"}}})
    for number, each in enumerate(icons.SETS):
        held = {"bell-outline": {"body": f"bell {number}"}, "key": {"body": f"key {number}"}}
        as_json(root / each / "package/icons.json", {"icons": held})

    for name in ("cat", "kite"):
        file = root / "quickdraw/package/src/drawings" / f"{name}.ndjson.gz"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [(noise(name, i, shape=(784,)) / 255).tolist() for i in range(SKETCHES + 70)]
        file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    photographs = root / "cifar10" / "package"
    photographs.mkdir(parents=True)
    for part, file in (("train", "data_batch_1"), ("test", "test_batch")):
        Image.fromarray(noise(part, shape=(80, 1024, 3))).save(photographs / f"{file}.png")
        as_json(photographs / f"{part}_lables.json", [row % 10 for row in range(80)])
    for label in range(10):
        rows = [noise("worn", label, i, shape=(784,)).tolist() for i in range(12)]
        rows[-1] = rows[0]  # a photograph that is there twice, and was seen
        as_json(root / f"fashion/package/src/clothes/{label}.json", {"data": [*rows, []]})
        written = noise("written", label, shape=(8 * 784,)) / 255
        as_json(root / f"digits/package/src/digits/{label}.json", {"data": written.tolist()})
    return {folder.name: folder for folder in root.iterdir()}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Drawings without a renderer of SVG, fewer clothes, datasets of these packages, sheets that are quick to write."""

    def picture(content: bytes, suffix: str) -> np.ndarray:
        return noise(content, shape=(48, 48, 4))

    save = Image.Image.save

    def quickly(image: Image.Image, file: Path, kind: str | None = None, **options: object) -> None:
        """The same pixels: noise takes ten seconds to compress as well as can be."""
        save(image, file, kind, **{**options, "method": 0})

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Image.Image, "save", quickly)
        for module in (studios, icons):
            monkeypatch.setattr(module, "picture", picture)
        for module in (pool, sheets):
            monkeypatch.setattr(module, "CLOTHES", CLOTHES)
        monkeypatch.setattr(sheets, "CHOICES", CHOICES)
        yield


@pytest.fixture(scope="module")
def seen(packages: dict[str, Path]) -> Pool:
    """What pretraining sees of these packages."""
    return assemble(packages, quiet)


def quiet(_: str) -> None:
    pass


def test_pretraining_sees_these_pictures_under_these_names_and_no_others(seen: Pool) -> None:
    by_source = defaultdict(list)
    for row, source in enumerate(seen.source):
        by_source[str(source)].append(row)
    assert by_source.keys() == {*studios.SEEN, "gameicons", "quickdraw", "cifar10", "fashion"}
    counts = {source: len(rows) for source, rows in by_source.items()}
    expected = dict.fromkeys(studios.SEEN, 4)  # three animals and the kite; skin tones are left out
    assert counts == expected | {"gameicons": 2, "quickdraw": 2 * SKETCHES, "cifar10": 80, "fashion": 10 * CLOTHES}

    media = {source: {MEDIA[seen.medium[row]] for row in rows} for source, rows in by_source.items()}
    assert media["fluentcontrast"] == media["gameicons"] == {"ink"}
    assert media["noto"] == media["twemoji"] == {"drawing"}
    assert media["quickdraw"] == {"sketch"}
    assert media["cifar10"] == media["fashion"] == {"photo"}

    labels = {source: [seen.concepts[seen.concept[row]].label for row in rows] for source, rows in by_source.items()}
    assert sorted(labels["noto"]) == ["cat", "cow", "dog", "kite"]
    assert labels["gameicons"] == ["cat", "war axe"]
    assert set(labels["quickdraw"]) == {"cat", "kite"}
    assert set(labels["cifar10"]) == set(CIFAR10)
    assert set(labels["fashion"]) == set(FASHION)
    cat = next(concept for concept in seen.concepts if concept.label == "cat")
    assert cat.names == ("cat", "kitty", "tom cat")
    assert cat.keywords == ("meow",)
    assert cat.kind == "mammals"

    sketch = seen.pictures[by_source["quickdraw"][1]]  # the second of the cats, made larger
    assert not sketch[..., :3].any()
    small = np.asarray(Image.fromarray(sketch[..., 3]).resize((28, 28), Image.Resampling.BOX)).astype(float)
    assert np.corrcoef(small.ravel(), noise("cat", 1, shape=(784,)))[0, 1] > 0.9


def test_datasets_show_what_pretraining_does_not_each_picture_on_one_side(
    packages: dict[str, Path], seen: Pool, tmp_path: Path
) -> None:
    digests = sheets.make(packages, seen, tmp_path, quiet)
    trained = {picture.tobytes() for picture in seen.pictures}
    learned, tested = defaultdict(set), defaultdict(set)
    for choice in CHOICES:
        sheet = Sheet.read(tmp_path, choice.name)
        by_split = defaultdict(set)
        for label, split, origin in sheet.record["drawings"]:
            by_split[split].add(origin)
            (tested if split == "test" else learned)[origin].add(label)
        assert {split: bool(origins) for split, origins in by_split.items()} == {
            "train": True,
            "val": True,
            "test": True,
        }
        for split in ("train", "val", "test"):
            assert len(list(sheet.checked(split))) == sheet.counts[split]
        for picture in sheet.drawings:
            grey = len(picture) == 28
            visible = picture[..., -1] if grey else np.where(picture[..., -1:] > 0, picture, 0)
            assert sheets.picture_digest(visible) not in digests
    assert not learned.keys() & tested.keys()
    sources = {origin.split("/")[0] for origin in (*learned, *tested)}
    assert sources == {*studios.UNSEEN, "quickdraw", "cifar10", "fashion", *icons.SETS, "mnist"}
    for origin in (*learned, *tested):
        if origin.startswith("quickdraw"):
            assert int(origin.split("/")[-1]) >= SKETCHES
        if origin.startswith("fashion"):
            assert 6 <= int(origin.split("/")[-1]) < 11  # the second half, without the one that was seen
        assert not origin.startswith("cifar10/train")
    for row in range(15, SKETCHES + 70):
        assert pool.as_in_pool(noise("cat", row, shape=(28, 28)), strokes=True).tobytes() not in trained

    for shift in SHIFTS:
        sheet = Sheet.read(tmp_path, shift.name)
        assert sheet.record["of"] == "animals"
        assert len(list(sheet.checked("test"))) == sheet.counts["test"] > 0
        shown = [origin for _, split, origin in sheet.record["drawings"] if split == "test"]
        assert not {origin.replace("_black", "") for origin in shown} & learned.keys()
    assert Sheet.read(tmp_path, "animals_sketch").class_names == ("cat",)
    black = {origin.split("/")[0] for *_, origin in Sheet.read(tmp_path, "animals_line").record["drawings"]}
    assert black <= set(studios.BLACK)

    made = {file.name: file.read_bytes() for file in sorted(tmp_path.iterdir())}
    assert not any(name.endswith(".partial") for name in made)
    again = tmp_path / "again"
    sheets.make(packages, seen, again, quiet)
    assert made == {file.name: file.read_bytes() for file in sorted(again.iterdir())}


@pytest.mark.parametrize("name", ["animals", "sketches", "photos", "clothes"])
def test_a_dataset_is_not_made_of_what_the_pool_holds(
    packages: dict[str, Path], seen: Pool, tmp_path: Path, name: str
) -> None:
    """Whatever the rules say: the pool itself is looked at."""
    choice = next(choice for choice in CHOICES if choice.name == name)
    record, pictures = sheets._dataset(choice, sheets.Source(packages, sheets.seen_digests(packages, seen)))
    held = pool.as_in_pool(pictures[-1], strokes=record["scene"] is not None)
    longer = Pool(
        seen.concepts,
        np.concatenate([seen.pictures, held[None]]),
        *(np.concatenate([each, each[-1:]]) for each in (seen.concept, seen.medium, seen.source)),
    )
    origin = record["drawings"][-1][2]
    with pytest.raises(SystemExit, match=f"{origin} of the dataset {name!r} is in the pool that pretraining sees"):
        sheets.make(packages, longer, tmp_path, quiet)
    assert not (tmp_path / f"{name}.json").exists()


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("train", r"pool\.npz is not there; assemble it first"),
        ("evaluate", r"data is not there; make the sheets first"),
    ],
)
def test_a_step_says_which_one_comes_before_it(tmp_path: Path, step: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        main([step, "--work", str(tmp_path)])


def test_export_needs_a_checkpoint_and_evaluate_a_model(seen: Pool, tmp_path: Path) -> None:
    replace(seen, pictures=np.zeros((0, 48, 48, 4), np.uint8)).save(tmp_path)
    with pytest.raises(SystemExit, match=r"checkpoint\.safetensors is not there; train first"):
        main(["export", "--work", str(tmp_path)])
    (tmp_path / "data").mkdir()
    with pytest.raises(SystemExit, match=str(tmp_path / "model")):
        main(["evaluate", "--work", str(tmp_path)])


def test_an_existing_pool_is_kept_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool.npz").write_bytes(b"")
    main(["assemble", "--work", str(tmp_path)])
    assert f"{tmp_path / 'pool.npz'} is there; remove it to assemble it again" in capsys.readouterr().out


def test_so_many_renders_is_a_positive_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--work", str(tmp_path), "--renders", "-5"])
    assert "--renders must be at least 1, got -5" in capsys.readouterr().err

"""Histology in the layouts of PLIP's and BAPLe's scripts, and class names in CoOp's form."""

from pathlib import Path

import pytest
from PIL import Image

from calprompt.cli import main
from calprompt.data import catalogue
from calprompt.data.catalogue import check, get
from calprompt.data.labelled import labelled_images
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.progress import silent
from data import trees

CLASSES = {"kather": trees.TISSUES, "pannuke": ["benign", "malignant"], "digestpath": ["benign", "malignant"]}
TISSUES = list(get("kather").layout.names.values())
KATHER = "".join(f"{folder} {name}\n" for folder, name in zip(trees.TISSUES, TISSUES, strict=True))


def slides(folder: Path) -> Path:
    """Slides and masks of DigestPath: four of each kind, one patch each."""
    for name in ("tissue-train-neg", "tissue-train-pos-v1"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (520, 470), (180, 90, 150)).save(folder / name / f"{number}.jpg")
            if "pos" in name:
                Image.new("L", (520, 470), 255).save(folder / name / f"{number}_mask.jpg")
    return folder


def baple(root: Path, key: str, folder: str | None = None, *, test: str = "test") -> Path:
    """images/train and images/test beside classnames.txt."""
    made = trees.named(root, folder or key, "images/train", f"images/{test}", CLASSES[key], ".png")
    names = KATHER if key == "kather" else "benign benign\nmalignant malignant"
    trees.write(made / "classnames.txt", names)
    return made


@pytest.mark.parametrize("root", ["", "DigestPath2019", "DigestPath2019/Colonoscopy_tissue_segment_dataset"])
def test_slides_where_plips_scripts_have_them(
    tmp_path: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = slides(tmp_path / "DigestPath2019" / "Colonoscopy_tissue_segment_dataset")
    monkeypatch.setenv("COLUMNS", "300")
    command = ["data", "prepare", "digestpath", "--root", str(tmp_path / root), "--quiet"]
    assert main(command) == 0
    assert f"made {folder / 'patches'}: 2 benign to test, 2 benign to train" in capsys.readouterr().out
    assert main(command) == 0
    assert "is there already" in capsys.readouterr().out
    dataset = load_dataset("digestpath", root=tmp_path / root)
    assert (dataset.name, dataset.class_names) == ("digestpath", ("benign", "malignant"))
    assert (len(dataset.train), len(dataset.test)) == (4, 4)
    assert main(["data", "check", "digestpath", "--root", str(tmp_path / root)]) == 0


def test_where_slides_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CalpromptError) as error:
        get("digestpath").locate(tmp_path)
    for part in (str(tmp_path), "digestpath2019", "tissue-train-pos-v1/ or tissue-train-neg/"):
        assert part in str(error.value)
    folder = slides(tmp_path / "DigestPath2019" / "Colonoscopy_tissue_segment_dataset")
    for path in (folder / "tissue-train-neg").iterdir():
        path.unlink()
    entry = get("digestpath")
    with pytest.raises(CalpromptError, match=f"{folder / 'tissue-train-neg'} has no slides"):
        entry.prepare(entry, entry.locate(tmp_path), silent)


@pytest.mark.parametrize("key", CLASSES)
@pytest.mark.parametrize("inside", ["", "folder"])
def test_baples_layout(tmp_path: Path, key: str, inside: str) -> None:
    folder = baple(tmp_path, key)
    dataset = load_dataset(key, root=folder if inside else tmp_path)
    names = TISSUES if key == "kather" else CLASSES[key]
    assert list(dataset.class_names) == names
    assert dataset.template == get(key).templates["coop"]
    assert (len(dataset.train), len(dataset.val), len(dataset.test)) == (3 * len(names), 0, 2 * len(names))
    assert dataset.train.images.paths[-1] == f"images/train/{CLASSES[key][-1]}/{CLASSES[key][-1]}-2.png"
    assert load_dataset(folder) == dataset
    learned = labelled_images(folder)
    assert (learned.class_names, len(learned.train)) == (dataset.class_names, len(dataset.train))


def test_kather_as_baples_code_reads_it(tmp_path: Path) -> None:
    baple(tmp_path, "kather", test="val")
    dataset = load_dataset("kather", root=tmp_path)
    assert (len(dataset.val), len(dataset.test)) == (0, 18)


def test_another_split_has_another_name(tmp_path: Path) -> None:
    folder = baple(tmp_path, "digestpath")
    assert load_dataset("digestpath", root=tmp_path).name == "digestpath-baple-split"
    (note,) = check(get("digestpath"), tmp_path).notes
    assert "patches of one slide train and test" in note
    entry = get("digestpath")
    assert "are there already" in entry.prepare(entry, folder, silent)[0]
    slides(folder)  # from which a split by slides can be made
    assert entry.prepare(entry, folder, silent)[0].startswith("made ")
    assert load_dataset("digestpath", root=tmp_path).name == "digestpath"
    assert check(entry, tmp_path).notes == []
    baple(tmp_path, "pannuke")
    pannuke = get("pannuke")
    assert load_dataset("pannuke", root=tmp_path).name == "pannuke-baple-split"
    assert "three in ten instead of seven" in check(pannuke, tmp_path).notes[0]
    assert "are there already" in pannuke.prepare(pannuke, tmp_path / "pannuke", silent)[0]


def test_names_in_classnames_override_ours(tmp_path: Path) -> None:
    folder = baple(tmp_path, "pannuke")
    trees.write(folder / "classnames.txt", "malignant a tumour\nbenign healthy\n")
    assert load_dataset("pannuke", root=tmp_path).class_names == ("healthy", "a tumour")
    (folder / "classnames.txt").unlink()
    assert load_dataset("pannuke", root=tmp_path).class_names == ("benign", "malignant")


def test_folders_that_were_only_made_are_not_images(tmp_path: Path) -> None:
    for kind in ("train", "test"):
        for name in ("benign", "malignant"):
            (tmp_path / "pannuke" / "images" / kind / name).mkdir(parents=True)
    problems = check(get("pannuke"), tmp_path).problems
    assert len(problems) == 2
    assert f"{tmp_path / 'pannuke' / 'patches' / 'train'}/: not there" in problems[0]
    assert f"Or have images/train/ and images/test/ in {tmp_path / 'pannuke'}" in problems[0]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("benign benign\n", r"classnames.txt does not list 'malignant'; expected a line for each of benign, malignant"),
        ("benign a\nmalignant b\nother c\n", "lists 'other', which is not a class folder"),
        ("benign\nmalignant\n", "expected lines such as 'n01440764 tench', got 'benign'"),
    ],
)
def test_what_is_wrong_with_classnames(tmp_path: Path, names: str, says: str) -> None:
    trees.write(baple(tmp_path, "pannuke") / "classnames.txt", names)
    with pytest.raises(CalpromptError, match=says):
        load_dataset("pannuke", root=tmp_path)


def test_any_dataset_in_baples_layout(tmp_path: Path) -> None:
    folder = trees.named(tmp_path, "covid", "images/train", "images/test", ["covid", "normal"], ".png")
    assert catalogue.recognise(folder) is None
    trees.write(folder / "classnames.txt", "covid lungs with covid\nnormal healthy lungs\n")
    dataset = load_dataset(folder)
    assert (dataset.name, dataset.class_names) == ("covid", ("lungs with covid", "healthy lungs"))
    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    trees.write(folder / "classes.txt", "normal\ncovid\n")
    assert load_dataset(folder).class_names == ("normal", "covid")


FOLDERS = ["ADI", "BACK", "DEB"]


def tissues(folder: Path) -> Path:
    for name in FOLDERS:
        for number in range(4):
            trees.put(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("classes.txt", "ADI adipose tissue\nBACK background\nDEB debris\n",
         ("adipose tissue", "background", "debris")),
        ("classes.txt", "DEB  debris\nADI fat\nBACK background\n", ("debris", "fat", "background")),
        ("classes.json", '["ADI adipose tissue", "BACK background", "DEB debris"]',
         ("adipose tissue", "background", "debris")),
        ("classes.txt", "adipose tissue\nADI debris\nbackground\n", ("adipose tissue", "ADI debris", "background")),
    ],
)  # fmt: skip
def test_a_classes_file_in_coops_form(tmp_path: Path, file: str, text: str, names: tuple[str, ...]) -> None:
    trees.write(tissues(tmp_path) / file, text)
    dataset = load_dataset(tmp_path)
    assert dataset.class_names == names
    folders = {
        path[:3]: names[label] for path, label in zip(dataset.train.images.paths, dataset.train.labels, strict=True)
    }
    if "fat" in names:
        assert folders == {"ADI": "fat", "BAC": "background", "DEB": "debris"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ADI adipose tissue\nBACX background\nDEB debris\n", "such as 'ADI adipose tissue', a class .* 'BACX backgro"),
        ("ADI adipose tissue\nBACK\nDEB debris\n", "and also 'BACK'; write all of them in that form"),
        ("ADI adipose tissue\nBACK background\n", "does not list DEB; add a line"),
        ("ADI adipose tissue\nBACK background\nDEB debris\nADI fat\n", "has the folder 'ADI' twice"),
        ("ADI tissue\nBACK tissue\nDEB debris\n", "has the name 'tissue' twice"),
    ],
)
def test_a_classes_file_partly_in_coops_form(tmp_path: Path, text: str, says: str) -> None:
    trees.write(tissues(tmp_path) / "classes.txt", text)
    with pytest.raises(CalpromptError, match=says):
        load_dataset(tmp_path)


def test_a_folder_called_like_the_first_word_of_another(tmp_path: Path) -> None:
    for name in ("great", "great dane"):
        for number in range(4):
            trees.put(tmp_path / name / f"{number}.png")
    trees.write(tmp_path / "classes.txt", "great dane\ngreat\n")
    assert load_dataset(tmp_path).class_names == ("great dane", "great")


def test_coops_form_is_read_of_numbered_tables_and_of_the_catalogue(tmp_path: Path) -> None:
    rows = "".join(f"img/{kind}{label}.png,{label},{kind}\n" for label in (0, 1) for kind in ("train", "test"))
    table = trees.write(tmp_path / "labels.csv", f"path,label,split\n{rows}")
    trees.write(tmp_path / "classes.txt", "1 dog\n0 house cat\n")
    assert load_dataset(table).class_names == ("dog", "house cat")
    trees.make(tmp_path, "kather")
    file = trees.write(tmp_path / "names.txt", KATHER.replace("TUM colorectal adenocarcinoma", "TUM malignant"))
    dataset = load_dataset("kather", root=tmp_path, classes=file)
    assert dataset.class_names == (*TISSUES[:-1], "malignant epithelium")


def test_names_that_imagenet_has_twice(tmp_path: Path) -> None:
    folder = trees.imagenet(tmp_path)
    text = (folder / "classnames.txt").read_text().replace("kite", "owl")
    trees.write(folder / "classnames.txt", text)
    again = load_dataset("imagenet", root=tmp_path, classes=folder / "classnames.txt")
    assert again == load_dataset("imagenet", root=tmp_path)
    assert again.class_names.count("owl") == 2

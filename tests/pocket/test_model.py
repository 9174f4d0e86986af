"""The embedded model: loaded like any other, equal to open_clip's own encoding, and honest about words it never saw."""

import warnings

import open_clip
import pytest
import torch

from calprompt import pocket
from calprompt.clip import load_backbone

TEXTS = ["a picture of a cat.", "a sketch of a broken heart.", "the flag of France", "dog"]


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("pocket")


def test_against_open_clip(backbone):
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{pocket.MODEL}", precision="fp32")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{pocket.MODEL}")
    images = torch.randn(6, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(backbone.encode_image(images), model.encode_image(images), atol=1e-4, rtol=0)
        torch.testing.assert_close(
            backbone.encode_strings(TEXTS), model.encode_text(tokenizer(TEXTS)), atol=1e-4, rtol=0
        )
        torch.testing.assert_close(backbone.logit_scale, model.logit_scale.exp(), atol=1e-4, rtol=0)
    from PIL import Image

    picture = Image.effect_noise((70, 52), 60).convert("RGB")
    torch.testing.assert_close(backbone.preprocessing.evaluation()(picture), preprocess(picture), atol=1e-4, rtol=0)


def test_words_it_never_saw_are_named(backbone):
    with pytest.warns(UserWarning, match="'pocket' has never seen 'immunohistochemistry'"):
        backbone.zero_shot(["cat", "immunohistochemistry"], "a picture of a {}.")


@pytest.mark.parametrize("name", pocket.names())
def test_it_knows_the_words_of_its_datasets(backbone, name):
    sheet = pocket.sheet(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backbone.zero_shot(sheet.class_names, sheet.record["template"])
        backbone.zero_shot(sheet.class_names)


def test_it_is_better_than_chance_on_photographs(backbone):
    sheet = pocket.sheet("photos")
    chosen = [(label, pixels) for label, number, pixels in sheet.pictures("test") if number < 20]
    from PIL import Image

    images = torch.stack([backbone.preprocessing.evaluation()(Image.fromarray(pixels)) for _, pixels in chosen])
    texts = backbone.zero_shot(sheet.class_names, sheet.record["template"])
    guesses = (backbone.encode_image(images) @ texts.T).argmax(1)
    assert (guesses == torch.tensor([label for label, _ in chosen])).double().mean() > 0.3

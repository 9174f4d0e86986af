"""What single tuners promise: parameter counts, named departures of the public code, projections, averages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_clip.model import CLIP

from calprompt import tuners
from calprompt.clip.backbone import Backbone
from calprompt.clip.preprocessing import Preprocessing
from calprompt.errors import CalpromptError
from calprompt.tuners import CoOp, MaPLe, ProDA, PromptSRC, create
from calprompt.tuners.coop import mean_similarity, project
from calprompt.tuners.proda import spread
from tiny import MEAN, STD, tiny_backbone

BACKBONE = tiny_backbone()
NAMES = ["cat", "dog", "tree"]


@pytest.mark.parametrize(
    ("name", "count"),
    [("zero-shot", 0), ("coop", 8_192), ("cocoop", 35_360), ("maple", 3_555_072), ("promptsrc", 46_080)],
)
def test_learnable_parameters_at_vit_b_16(name: str, count: int) -> None:
    """The known counts, on a model of that size without memory."""
    with torch.device("meta"):
        model = CLIP(512, {"layers": 12, "width": 768, "patch_size": 16, "image_size": 224}, {})
    backbone = Backbone(model, preprocessing=Preprocessing(224, MEAN, STD), name="ViT-B-16", fingerprint="")
    assert sum(p.numel() for p in create(name, backbone, NAMES).parameters()) == count


def test_available() -> None:
    known = {"zero-shot", "coop", "cocoop", "maple", "kgcoop", "proda", "prograd", "promptsrc"}
    assert known <= set(tuners.available())
    with pytest.raises(CalpromptError, match=r"unknown tuner 'CoOpp'\. Did you mean 'coop'\? Known: clap, "):
        tuners.get("CoOpp")


def test_class_specific_prompts_refuse_other_classes() -> None:
    tuner = CoOp(BACKBONE, NAMES, context=4, class_specific=True)
    assert tuner.context.shape == (3, 4, 64)
    with pytest.raises(CalpromptError, match="learned class by class"):
        tuner.with_classes(["car"])


def test_words_set_the_length() -> None:
    assert CoOp(BACKBONE, NAMES).context.shape == (16, 64)
    assert CoOp(BACKBONE, NAMES, words="a photo of a").context.shape == (4, 64)
    some = CoOp(BACKBONE, NAMES, words="a photo of a", context=2)
    assert some.context.shape == (2, 64)
    torch.testing.assert_close(some.text_features(), some.frozen_text)  # nothing learned yet: the sentence itself
    with pytest.raises(CalpromptError, match="16 context vectors do not fit the 4 tokens of 'a photo of a'"):
        CoOp(BACKBONE, NAMES, words="a photo of a", context=16)
    with pytest.raises(CalpromptError, match="at least 1, got 0"):
        CoOp(BACKBONE, NAMES, context=0)


def test_text_features_that_stand_for_many_images() -> None:
    tuner = create("cocoop", BACKBONE, NAMES)
    images = torch.randn(5, BACKBONE.embed_dim, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        tuner.common_text_features(images[:1]), tuner.text_features(tuner.image_features(images))[0]
    )
    shift = torch.stack([tuner.meta_net(tuner.image_features(image[None]))[0] for image in images]).mean(dim=0)
    with torch.no_grad():
        tuner.context += shift
    expected = tuner.text_features()
    with torch.no_grad():
        tuner.context -= shift
    torch.testing.assert_close(tuner.common_text_features(images), expected)
    assert (expected - tuner.text_features()).abs().max() > 1e-3, "as no image would see them"
    other = create("coop", BACKBONE, NAMES)
    assert torch.equal(other.common_text_features(images), other.text_features())


LEARN_CONTEXT = ("coop", "cocoop", "maple", "proda", "promptsrc")


@pytest.mark.parametrize(
    ("name", "option", "says"),
    [
        ("cocoop", {"text_of": "first"}, "text_of must be 'all' or 'last'"),
        ("kgcoop", {"pull": "none"}, "unknown pull 'none'. Known: knowledge, orthogonality"),
        ("prograd", {"context": 2}, "4 words before its slot, more than context=2"),
        ("prograd", {"regularisers": "both"}, "Known: cross-entropy, distillation"),
        ("proda", {"prompts": 6, "prompt_batch": 4}, "prompts must be a multiple of prompt_batch=4, got 6"),
        *((name, {"context": 0}, "context must be at least 1, got 0") for name in LEARN_CONTEXT),
        ("proda", {"prompt_batch": 0}, "prompt_batch must be at least 1, got 0"),
        ("proda", {"prompt_batch": -4}, "at least 1, got -4"),
        ("promptsrc", {"visual": 0}, "visual must be at least 1, got 0"),
        ("promptsrc", {"average": "late"}, r"such as \(15, 1\), 'auto' or None; got 'late'"),
        ("prograd", {"words": "a photo"}, "unknown option of tuner 'prograd': 'words'"),
        ("maple", {"depth": 0}, "do not fit both towers: choose 1 to 3"),
        ("promptsrc", {"visual_depth": -1}, "do not fit the image tower: choose 1 to 3"),
        ("promptsrc", {"teacher": 7}, "60 or 80"),
    ],
)
def test_bad_options_are_answered(name: str, option: dict, says: str) -> None:
    with pytest.raises(CalpromptError, match=says):
        create(name, BACKBONE, NAMES, **option)


@given(st.integers(0, 10_000), st.floats(0, 2))
def test_projection(seed: int, strength: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(6, generator=generator).double(), torch.randn(6, generator=generator).double()
    projected = project(a, b, strength)
    if a @ b >= 0:
        assert torch.equal(projected, a)
    else:
        assert (projected @ b).item() == pytest.approx(((1 - strength) * (a @ b)).item(), abs=1e-9)


def test_projection_without_direction_changes_nothing() -> None:
    a = torch.randn(4)
    assert torch.equal(project(a, torch.zeros(4)), a)


def test_proda_spread_is_the_covariance_formula() -> None:
    """R_i[c,c'] = Σ_d f_id² Σ_p δ_cpd δ_c'pd / (P + 1), σ = R_yy + R_cc - 2 R_yc, with every matrix in full."""
    generator = torch.Generator().manual_seed(0)
    image, deviations = (torch.randn(shape, generator=generator).double() for shape in ((5, 8), (4, 6, 8)))
    labels = torch.tensor([0, 5, 2, 2, 1])
    A = torch.einsum("pcd,pkd->dck", deviations, deviations) / 5
    R = torch.einsum("bd,dck->bck", image**2, A)
    rows = torch.arange(5)
    full = R[rows, labels, labels][:, None] + R.diagonal(dim1=1, dim2=2) - 2 * R[rows, labels]
    torch.testing.assert_close(spread(image, labels, deviations), full)


def test_proda_takes_every_prompt_once_a_round() -> None:
    tuner = ProDA(BACKBONE, NAMES, prompts=8, prompt_batch=4, context=2)
    rounds = [sorted(tuner.draw() + tuner.draw()) for _ in range(3)]
    assert rounds == [list(range(8))] * 3
    assert tuner.positions == ["front"] * 2 + ["middle"] * 2 + ["end"] * 4


def test_maple_keeps_the_words_beyond_its_context_frozen() -> None:
    tuner = MaPLe(BACKBONE, NAMES)
    assert tuner.context.shape == (2, 64)
    assert len(tuner.layout.prefix) == 5
    assert len(tuner.deep) == 2  # three blocks


def test_promptsrc_average_is_the_weighted_mean_of_the_epochs() -> None:
    tuner = PromptSRC(BACKBONE, NAMES, average=(2, 1))
    seen = []
    for epoch in range(1, 4):
        with torch.no_grad():
            tuner.context.fill_(epoch)
        tuner.end_epoch(epoch, 3)
        seen.append(tuner.context[0, 0].item())
    weights = torch.tensor([-0.5, 0.0, -0.5]).softmax(dim=0)
    assert seen == pytest.approx([1, 2, float(weights @ torch.tensor([1.0, 2.0, 3.0]))], rel=1e-5)


def test_promptsrc_averages_around_three_quarters_of_the_epochs() -> None:
    """The published mean, 15 of 20, would leave two thirds of 50 epochs without weight."""
    found = []
    for average in ("auto", (30.0, 1.0)):
        tuner = PromptSRC(BACKBONE, NAMES, average=average)
        for epoch in range(1, 41):
            with torch.no_grad():
                tuner.context.fill_(epoch)
            tuner.end_epoch(epoch, 40)
        found.append(tuner.context[0, 0].item())
    assert found[0] == found[1] == pytest.approx(30)


def test_promptsrc_reads_the_templates_of_its_teacher_only_to_train() -> None:
    tuner = PromptSRC(BACKBONE, NAMES)
    other = tuner.with_classes(["fish", "bird", "horse"])
    assert tuner._teacher is None
    assert tuner.teacher_text.shape == (len(NAMES), 32)
    assert other._teacher is None
    assert not torch.equal(other.teacher_text[:2], tuner.teacher_text[:2])


def test_the_accuracy_of_proda_is_that_of_its_prediction() -> None:
    """The logits of its training know the labels: they raise those of all other classes."""
    tuner = ProDA(BACKBONE, NAMES, prompts=2, prompt_batch=2, context=2)
    images, labels = torch.randn(40, 32, generator=torch.Generator().manual_seed(3)), torch.arange(40) % len(NAMES)
    outputs = tuner(images, labels)
    assert torch.equal(outputs.correct, tuner.predict([images]).argmax(dim=1) == labels)
    assert not torch.equal(outputs.logits, tuner.predict([images]))


@pytest.mark.parametrize("T", [1.0, 3.0])
def test_distillation_of_prograd_is_the_formula(T: float) -> None:
    tuner = create("prograd", BACKBONE, NAMES, temperature=T)
    images = torch.randn(4, BACKBONE.embed_dim, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        tuner.context += 0.3 * torch.randn(tuner.context.shape, generator=torch.Generator().manual_seed(3))
        outputs = tuner(images, torch.zeros(4, dtype=torch.long))
    value = 0.0
    for z, z0 in zip(outputs.logits.double(), outputs.zero_shot_logits.double(), strict=True):
        value -= T**2 * float(((z0 / T).softmax(0) * (z / T).softmax(0).log()).sum()) / 4
    assert outputs.terms["distillation"].item() == pytest.approx(value, rel=1e-5)


def test_prograd_parts_only_plain_cross_entropy_from_its_regularisers() -> None:
    tuner = create("prograd", BACKBONE, NAMES, regularisers="distillation")
    tuner.check_objective({"ce": 1.0, "moments": 5.0})
    for weights in ({"zs_norm": 1.0}, {"ce": 2.0, "margin": 1.0}):
        with pytest.raises(CalpromptError, match="the loss has no term 'ce' of weight 1"):
            tuner.check_objective(weights)
        create("prograd", BACKBONE, NAMES).check_objective(weights)


def test_mean_similarity_of_one_is_zero() -> None:
    assert mean_similarity(torch.ones(1, 4)) == 0

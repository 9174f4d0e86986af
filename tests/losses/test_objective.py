"""Sums of losses as they are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from calprompt import losses
from calprompt.errors import CalpromptError, SettingError
from calprompt.losses import NAMED, Objective, mean_variance_margin, text_moment_matching
from calprompt.outputs import Outputs
from samples import rounding


def outputs(**more: object) -> Outputs:
    generator = torch.Generator().manual_seed(0)
    image, text, frozen = (F.normalize(torch.randn(6, 8, generator=generator), dim=-1) for _ in range(3))
    return Outputs(
        logits=20 * image @ text.T,
        labels=torch.arange(6) % 3,
        image=image,
        text=text,
        frozen_text=frozen,
        logit_scale=torch.tensor(20.0),
        frozen_image=lambda: image,
        **more,  # type: ignore[arg-type]
    )


def test_tcpt_is_the_sum_of_the_paper() -> None:
    o = outputs()
    total, terms = Objective.parse("tcpt")(o)
    margin, moments = mean_variance_margin(o.logits, o.labels), text_moment_matching(o.text, o.frozen_text)
    assert total.item() == pytest.approx((F.cross_entropy(o.logits, o.labels) + margin + 5 * moments).item(), rel=1e-5)
    assert terms["moments"].item() == pytest.approx(moments.item())


def test_the_tuners_own_terms_are_added() -> None:
    total, terms = Objective.parse("ce")(outputs(terms={"own": torch.tensor(3.0)}))
    assert total.item() == pytest.approx(terms["ce"].item() + 3, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ce", "ce"),
        ("tcpt", "ce + margin + 5*moments"),
        ("ce+margin( alpha = 0.2 )", "ce + margin(alpha=0.2)"),
        ("0.5*ce + 2*moments(classes=3)", "0.5*ce + 2*moments(classes=3)"),
        ("0.123456789*ce", "0.123456789*ce"),
        ("mbls", "ce + 0.1*mbls"),
        ("1*mbls", "1*mbls"),
        ("penalty", "ce + 10*penalty"),
        ("zs_norm", "zs_norm"),
        ("margin_variance_only", "ce + margin(alpha=0)"),
        ("margin_l1", "ce + margin + 5*l1"),
    ],
)
def test_reads_and_shows(text: str, shown: str) -> None:
    assert str(Objective.parse(text)) == shown
    assert Objective.parse(shown).record() == Objective.parse(text).record()


def test_record_has_every_setting() -> None:
    assert Objective.parse("margin").record() == [
        {"name": "margin", "weight": 1.0, "options": {"alpha": 0.1, "beta": 0.01}}
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tcp", "unknown loss 'tcp'. Did you mean 'tcpt'"),
        ("tcpt + l1", "tcpt is the name of a sum and must stand alone; in another sum, write its terms: ce"),
        ("ce + margn", "unknown loss 'margn'. Did you mean 'margin'"),
        ("ce + margin(alfa=1)", "unknown option of loss 'margin': 'alfa'. Did you mean 'alpha'"),
        ("ce +", "cannot read the loss"),
        ("", "cannot read the loss"),
        ("ce - margin", "cannot read 'ce - margin'"),
        ("margin(0.1)", "cannot read the loss 'margin"),
        ("'a'*ce", "not a finite number"),
        ("ce + margin(alpha=open('x'))", "cannot read the loss"),
        ("ce + ce", "more than once"),
        ("ce + margin(alpha='much')", "option of loss 'margin': alpha must be a number, got 'much'"),
        ("label_smoothing(epsilon=2)", "must lie in"),
        ("focal(gamma=-1)", "at least 0, got -1"),
        ("__import__('os').system('true')", "cannot read"),
    ],
)
def test_bad_sums_are_refused(text: str, says: str) -> None:
    with pytest.raises(CalpromptError, match=says.replace("(", r"\(").replace("*", r"\*")):
        Objective.parse(text)


def test_moments_over_drawn_classes_follow_the_generator() -> None:
    loss = Objective.parse("moments(classes=3)")
    values = [loss(outputs(seed=s))[0].item() for s in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    with pytest.raises(CalpromptError, match="from 1 to 6, got 7"):
        Objective.parse("moments(classes=7)")(outputs())


def test_zero_shot_logits_are_computed_only_when_asked() -> None:
    asked = []
    o = outputs()
    lazy = Outputs(**{**vars(o), "frozen_image": lambda: asked.append(1) or o.image})
    Objective.parse("tcpt")(lazy)
    assert not asked
    torch.testing.assert_close(lazy.zero_shot_logits, 20 * o.image @ o.frozen_text.T, atol=rounding(20, 8), rtol=0)
    assert asked


@pytest.mark.parametrize("name", sorted({*NAMED, *losses.available()}))
def test_every_name_gives_a_finite_scalar_with_a_gradient(name: str) -> None:
    for images in ((), (6,)):  # shared text features, and text features of each image
        text = F.normalize(
            torch.randn(*images, 6, 8, generator=torch.Generator().manual_seed(1)), dim=-1
        ).requires_grad_()
        o = outputs()
        logits = 20 * (o.image @ text.T if not images else torch.einsum("nd,ncd->nc", o.image, text))
        total, terms = Objective.parse(name)(replace(o, text=text, logits=logits))
        total.backward()
        assert total.shape == ()
        assert all(bool(torch.isfinite(value)) for value in (total, *terms.values()))
        assert bool(torch.isfinite(text.grad).all())
        assert float(text.grad.abs().max()) > 0


def test_named_sums_are_what_their_names_say() -> None:
    o = outputs()
    ce, z, y, t, u = F.cross_entropy(o.logits, o.labels), o.logits, o.labels, o.text, o.frozen_text
    own = z.gather(1, y[:, None])[:, 0]
    m = own - z.scatter(1, y[:, None], -torch.inf).amax(dim=1)
    high, low = o.zero_shot_logits.amax(1, keepdim=True), o.zero_shot_logits.amin(1, keepdim=True)
    mean = (t.mean(0) - u.mean(0)).square().sum()
    covariance = (torch.cov(t.T, correction=0) - torch.cov(u.T, correction=0)).square().sum()
    between = [(x @ x.T).masked_select(~torch.eye(len(x), dtype=torch.bool)).mean() for x in (t, u)]
    margin, moments = 0.01 * m.var(correction=0) - 0.1 * m.mean(), 5 * (mean + covariance)
    expected = {
        "tcpt": margin + moments,
        "mbls": 0.1 * (z.amax(1, keepdim=True) - z - 10).relu().mean(),
        "penalty": 10 * ((z - high).relu().mean() + (low - z).relu().mean()),
        "margin_only": margin,
        "margin_mean_only": -0.1 * m.mean(),
        "margin_variance_only": 0.01 * m.var(correction=0),
        "moments_only": moments,
        "mean_moment_only": 5 * mean,
        "covariance_only": 5 * covariance,
        "margin_l1": margin + 5 * (t - u).abs().mean(),
        "margin_l2": margin + 5 * (t - u).square().mean(),
        "margin_similarity": margin + 5 * (between[0] - between[1]).abs(),
        "margin_otpt": margin + 5 * (t @ t.T).masked_select(~torch.eye(len(t), dtype=torch.bool)).square().mean(),
    }
    assert {name: Objective.parse(name)(o)[0].item() for name in NAMED} == {
        name: pytest.approx((ce + value).item(), rel=1e-5) for name, value in expected.items()
    }


@pytest.mark.parametrize("name", NAMED)
def test_named_sums_parse_to_what_they_print(name: str) -> None:
    assert Objective.parse(str(Objective.parse(name))).record() == Objective.parse(name).record()


def test_losses_with_zero_shot_logits_ask_for_them() -> None:
    o = outputs()
    values = {name: losses.get(name)()(o).item() for name in ("zs_norm", "penalty")}
    assert values["zs_norm"] == pytest.approx(
        losses.zero_shot_normalised_cross_entropy(o.logits, o.labels, o.zero_shot_logits).item()
    )
    assert values["penalty"] == pytest.approx(losses.range_penalty(o.logits, o.zero_shot_logits).item())


def test_a_tuner_term_and_a_loss_of_the_same_name_are_both_recorded() -> None:
    given = replace(outputs(seed=1), terms={"l1": torch.tensor(3.0), "pull": torch.tensor(4.0)})
    total, values = Objective.parse("ce + 2*l1")(given)
    assert set(values) == {"ce", "l1", "tuner_l1", "pull"}
    assert total.item() == pytest.approx(values["ce"].item() + 2 * values["l1"].item() + 7, rel=1e-5)


def test_the_margin_of_mbls_can_be_a_difference_of_cosines() -> None:
    o = outputs()
    scale = float(o.logit_scale)
    found = Objective.parse("ce + 0.1*mbls(cosine_margin=0.1)")(o)[0]
    assert found.item() == pytest.approx(Objective.parse(f"ce + 0.1*mbls(margin={0.1 * scale})")(o)[0].item(), rel=1e-5)
    text = "ce + 0.1*mbls(cosine_margin=0.1)"
    assert str(Objective.parse(text)) == text
    with pytest.raises(SettingError, match="mbls' has margin and cosine_margin; leave one of them out"):
        Objective.parse("ce + mbls(margin=2, cosine_margin=0.1)")
    with pytest.raises(SettingError, match=r"cosine_margin of loss 'mbls' must be 0 or more, got -0\.1"):
        Objective.parse("ce + mbls(cosine_margin=-0.1)")


def test_a_setting_that_came_later_leaves_earlier_runs_their_identity() -> None:
    assert Objective.parse("mbls").record()[1] == {"name": "mbls", "weight": 0.1, "options": {"margin": 10}}
    options = Objective.parse("ce + mbls(cosine_margin=0.1)").record()[1]["options"]
    assert options == {"margin": 10.0, "cosine_margin": 0.1}

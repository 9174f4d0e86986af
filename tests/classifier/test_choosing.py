"""Choosing a learner: what is compared, how sure the choice is, what the budget leaves out, and what is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import samples
from calprompt import Classifier
from calprompt.classifier import choosing, fitting
from calprompt.classifier.choosing import Candidate, Choice, Crossed, candidates_of, rank
from calprompt.errors import SettingError
from classifier.fits import SHARED, classifier, picture_paths

FEW = ("zero-shot", "tip-adapter-f")
LEARNERS = {"tuner": "linear-probe", "folds": 2}


def test_candidates_of_auto_and_of_one_tuner() -> None:
    assert [each.name for each in candidates_of("linear-probe", {"strength": 2.0})] == ["linear-probe"]
    assert len(candidates_of("linear-probe")) == 6
    assert [each.name for each in candidates_of("tip-adapter", {"alpha": 2.0})] == [
        f"tip-adapter, beta {beta}" for beta in ("1", "5.5", "20")
    ]
    assert {each.tuner for each in candidates_of("auto")} == set(choosing.CANDIDATES)
    assert candidates_of("coop", {"context": 2}) == [Candidate("coop", {"context": 2})]
    with pytest.raises(SettingError, match=r"options are those of one tuner"):
        candidates_of("auto", {"context": 2})


def test_standard_error_is_of_paired_differences() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.uniform(0.2, 0.9, (2, 50))
    labels = np.zeros(50, dtype=np.int64)
    crossed = [
        Crossed(Candidate(name, {}), np.stack([p, 1 - p], axis=1), labels)
        for name, p in (("a", np.minimum(first, second)), ("b", first))
    ]
    (best, _), (_, row) = rank(crossed, range(50))
    assert best.candidate.tuner == "b"
    apart = np.log(first) - np.log(np.minimum(first, second))
    assert row.difference == pytest.approx(apart.mean())
    assert row.error == pytest.approx(apart.std(ddof=1) / np.sqrt(50))
    twice = [Crossed(each.candidate, each.probabilities.repeat(2, axis=0), labels.repeat(2)) for each in crossed]
    (_, grouped) = rank(twice, np.arange(50).repeat(2))[1]
    assert grouped.error == pytest.approx(row.error), "copies say nothing new"


def test_of_equal_candidates_the_earlier_is_chosen() -> None:
    same = Crossed(Candidate("x", {}), np.full((4, 2), 0.5), np.zeros(4, dtype=np.int64))
    ranked = rank([same, replace(same, candidate=Candidate("y", {}))], range(4))
    assert [row.tuner for _, row in ranked] == ["x", "y"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "CANDIDATES", FEW)


def fit_auto(tmp_path: Path, **settings: object) -> tuple[Classifier, list[str]]:
    said: list[str] = []
    model = classifier(**{"tuner": "auto", "work_dir": str(tmp_path / "work"), **settings})
    model.fit(samples.pictures(), resources=SHARED, announce=said.extend)
    return model, said


@pytest.mark.usefixtures("few")
def test_auto_says_and_records_what_it_chose(tmp_path: Path) -> None:
    model, said = fit_auto(tmp_path)
    choice = model.model_.choice
    assert choice is not None
    best, other = choice.contenders
    assert model.model_.config.tuner == best.tuner
    assert best.nll <= other.nll
    assert choice.images == sum(tuned for tuned, _ in model.model_.counts), "held-out images take no part"
    assert [line for line in said if line.startswith(f"{other.name}: {other.nll:.3f} nats per image")]
    summary = " ".join(model.summary())
    assert f"Chose {best.name} by cross-fitting" in summary
    assert f"± {other.error:.3f} nats (standard error)" in summary
    folder = model.save(tmp_path / "model")
    assert f"Chose {best.name}" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["choice"] == json.loads(json.dumps(choice.to_dict()))
    loaded = Classifier.load(folder)
    assert loaded.model_.choice == choice
    assert loaded.get_params()["tuner"] == "auto"
    assert loaded.get_params()["epochs"] is None
    again, _ = fit_auto(tmp_path / "again")
    again.save(tmp_path / "again" / "model")
    for name in ("model.safetensors", "predictions.safetensors", "images.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "again" / "model" / name).read_bytes()


@pytest.mark.usefixtures("few")
def test_learners_beyond_the_budget_are_recorded_and_stay_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = fitting._Fit.finish

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting._Fit, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        fit_auto(tmp_path, budget="0.001s")
    monkeypatch.setattr(fitting._Fit, "finish", finish)
    monkeypatch.setattr(fitting._Clock, "is_over", lambda self: False)  # there would be time now
    model, _ = fit_auto(tmp_path, budget="0.001s")
    choice = model.model_.choice
    assert choice is not None
    assert model.model_.config.tuner == "zero-shot", "the first is compared in any case"
    assert choice.untried == ("tip-adapter-f",)
    assert "Not tried within the budget of 0.001s: tip-adapter-f." in model.summary()


@pytest.mark.usefixtures("few")
def test_resumed_fit_compares_the_same_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, is_over = fitting._Fit.finish, fitting._Clock.is_over

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting._Fit, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        fit_auto(tmp_path, budget="10m")
    monkeypatch.setattr(fitting._Fit, "finish", finish)
    monkeypatch.setattr(fitting._Clock, "is_over", lambda self: is_over(self) or True)  # there is no time left now
    choice = fit_auto(tmp_path, budget="10m")[0].model_.choice
    assert choice is not None
    assert choice.untried == ()
    assert {each.tuner for each in choice.contenders} == set(FEW)


def test_options_of_a_learner_are_chosen_unless_they_are_given(tmp_path: Path) -> None:
    model = classifier(**LEARNERS).fit(picture_paths()[::2], [Path(p).parent.name for p in picture_paths()[::2]])
    choice = model.model_.choice
    assert choice is not None
    assert {each.tuner for each in choice.contenders} == {"linear-probe"}
    assert model.model_.config.options["strength"] in {100.0, 10.0, 1.0, 0.1, 0.01, 0.001}
    loaded = Classifier.load(model.save(tmp_path / "model"))
    assert loaded.get_params()["tuner"] == "linear-probe"
    assert loaded.get_params()["options"] is None


def test_sentences_of_a_close_choice() -> None:
    rows = (
        choosing.Contender("linear-probe, strength 1", "linear-probe", 0.5, 0.9, 0.0, 0.0),
        choosing.Contender("linear-probe, strength 10", "linear-probe", 0.51, 0.89, 0.01, 0.01),
        choosing.Contender("kgcoop", "kgcoop", 0.52, 0.9, 0.02, 0.03),
    )
    lines = Choice("auto", {}, rows, 100).sentences()
    assert lines == [
        "Chose linear-probe, strength 1 by cross-fitting on 100 images that tune: 0.500 nats per image, 90.0 % right.",
        "It is not clearly better than the next, kgcoop, by 0.020 ± 0.030 nats (standard error).",
        "The others reached kgcoop 0.520 (90.0 %).",
    ]

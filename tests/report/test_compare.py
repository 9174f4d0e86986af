"""Comparisons of runs and models: on the same images, whatever their order; differences are paired."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samples
from calprompt.classifier.checks import measured_contenders, stored_contenders
from calprompt.cli import main
from calprompt.errors import DataError, SettingError
from calprompt.report.figures.methods import compare_figure
from calprompt.results.compare import Answers, Comparison, Contender, align, compare_contenders, run_contenders
from calprompt.results.methods import methods_of
from calprompt.results.sources import read_source
from classifier import fits
from report import reports

CLASSES = ("ant", "bee", "cat")


def answers(seed: int, images: Sequence[str] = tuple(map(str, range(40))), classes: Sequence[str] = CLASSES) -> Answers:
    """Answers of chance to images whose labels follow from their names."""
    rng = np.random.default_rng(seed)
    labels = np.array([int(image) % 3 for image in images])
    number = [list(classes).index(name) for name in CLASSES]
    return Answers(rng.dirichlet(np.ones(3), len(images)), np.array(number)[labels], list(images), list(classes))


def contenders(**methods: Sequence[Answers]) -> list[Contender]:
    return [
        Contender(name, "toys", seed, {"base": each})
        for name, found in methods.items()
        for seed, each in enumerate(found)
    ]


def value(comparison: Comparison, method: str, metric: str = "accuracy") -> float:
    return next(row.value for row in comparison.results.rows if (row.method, row.metric) == (method, metric))


def accuracy(found: Answers) -> float:
    return float((found.probabilities.argmax(axis=1) == found.labels).mean())


def test_compared_values_equal_the_answers_and_differences_are_paired() -> None:
    first, second = answers(1), answers(2)
    found = compare_contenders(contenders(one=[first], two=[second]), resamples=20)
    assert value(found, "one") == pytest.approx(accuracy(first))
    assert value(found, "two minus one") == pytest.approx(accuracy(second) - accuracy(first))
    counts = found.agreements[0]
    assert counts.both + counts.only_first + counts.only_second + counts.neither == 40
    assert counts.both + counts.only_first == round(40 * accuracy(first))
    assert (counts.only_second - counts.only_first) / 40 == pytest.approx(value(found, "two minus one"))


@settings(max_examples=30)
@given(st.permutations(range(40)), st.permutations(CLASSES), st.integers(0, 39))
def test_the_order_of_images_and_classes_does_not_matter(
    order: list[int], classes: tuple[str, ...], dropped: int
) -> None:
    """The same answers in another order, with other numbers of the classes, compare as themselves."""
    plain = answers(3)
    kept = [row for row in order if row != dropped]
    columns = [CLASSES.index(name) for name in classes]
    shuffled = Answers(
        plain.probabilities[kept][:, columns],
        np.array([list(classes).index(CLASSES[label]) for label in plain.labels[kept]]),
        [plain.images[row] for row in kept],
        classes,
    )
    one, other = align([plain, shuffled], "toys")
    assert list(one.images) == list(other.images)
    assert len(one.images) == 39
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    np.testing.assert_array_equal(one.labels, other.labels)


def test_incomparable_runs_raise() -> None:
    with pytest.raises(SettingError, match="two runs or models that differ, got one"):
        compare_contenders(contenders(one=[answers(1)]))
    with pytest.raises(SettingError, match="baseline must be one of one, two"):
        compare_contenders(contenders(one=[answers(1)], two=[answers(2)]), baseline="three")
    with pytest.raises(DataError, match="no image that all of them"):
        align([answers(1), answers(2, images=["90", "91"])], "toys")
    with pytest.raises(DataError, match="only some of them have the classes cat, dog"):
        align([answers(1), Answers(np.eye(3), np.arange(3), ["0", "1", "2"], ("ant", "bee", "dog"))], "toys")
    other = Answers(np.eye(3), np.array([1, 1, 2]), ["0", "1", "2"], CLASSES)
    with pytest.raises(DataError, match="different labels for 0"):
        align([answers(1), other], "toys")
    apart = [*contenders(one=[answers(1), answers(2)]), Contender("two", "toys", 7, {"base": answers(3)})]
    with pytest.raises(DataError, match="no seed that all methods have"):
        compare_contenders(apart)
    twice = [*contenders(one=[answers(1), answers(2)], two=[answers(3)]), *contenders(two=[answers(4)])]
    with pytest.raises(DataError, match="two runs of two have the same seed"):
        compare_contenders(twice)
    elsewhere = [Contender("one", "a", 1, {"base": answers(1)}), Contender("two", "b", 1, {"base": answers(2)})]
    with pytest.raises(DataError, match="no dataset that one and another"):
        compare_contenders(elsewhere)


def test_seeds_that_not_all_have_are_left_out() -> None:
    found = compare_contenders(contenders(one=[answers(1), answers(2), answers(3)], two=[answers(4), answers(5)]))
    assert "seeds 2 are left out" in found.notes[0]
    assert value(found, "one") == pytest.approx(np.mean([accuracy(answers(1)), accuracy(answers(2))]))


def test_means_over_datasets_have_intervals_over_datasets() -> None:
    both = [Contender(name, data, 1, {"base": answers(k)}) for k, (name, data) in enumerate(
        (name, data) for name in ("one", "two") for data in ("a", "b", "c")
    )]  # fmt: skip
    found = compare_contenders(both, resamples=10)
    differences = [
        100 * row.value for row in found.results.rows if (row.method, row.metric) == ("two minus one", "accuracy")
    ]
    assert found.summary["base", "two minus one", "accuracy"].value == pytest.approx(np.mean(differences))
    assert compare_figure(found).axes


def test_names_distinguish_settings() -> None:
    rows = [{"tuner": "coop", "loss": "ce", "shots": shots, "seed": seed} for shots in (4, 16) for seed in (1, 2)]
    assert [each.name for each in methods_of(rows)] == ["CoOp (shots 4)"] * 2 + ["CoOp (shots 16)"] * 2
    assert [each.name for each in methods_of([{**rows[0], "loss": "tcpt"}, rows[1]])] == ["CoOp + TCPT", "CoOp"]


def test_compared_runs_equal_their_measurements() -> None:
    """The numbers are those that the runs themselves say."""
    runs = read_source(reports.runs()).runs
    found = compare_contenders(run_contenders(runs, zero_shot=True), baseline="CoOp", resamples=10)
    assert found.methods == ["CoOp", "CoOp + TCPT", "zero-shot"]
    for method, loss in (("CoOp", "ce"), ("CoOp + TCPT", "tcpt")):
        for metric in ("accuracy", "ece"):
            stored = [run.metrics["novel"][metric] for run in runs if run.record["config"]["loss"] == loss]
            shown = next(
                row.value
                for row in found.results.rows
                if (row.method, row.split, row.metric) == (method, "novel", metric)
            )
            assert shown == pytest.approx(np.mean(stored))


def test_the_command_compares_runs(tmp_path: Path, capsys: Any) -> None:
    paths = [str(tmp_path / f"compared.{ending}") for ending in ("png", "json", "csv")]
    flags = ["--out", paths[0], "--json", paths[1], "--csv", paths[2], "--resamples", "20", "--zero-shot"]
    assert main(["compare", str(reports.runs()), *flags]) == 0
    text = capsys.readouterr().out
    assert "difference, CoOp + TCPT" in text
    assert "only the other" in text
    assert json.loads(Path(paths[1]).read_text())["settings"]["seeds"] == 2
    assert Path(paths[0]).read_bytes()[:4] == b"\x89PNG"
    assert main(["compare", str(reports.runs()), str(fits.saved())]) == 2
    assert "compare models with models" in capsys.readouterr().err
    assert main(["compare", str(reports.runs()), "--data", "photos"]) == 2
    assert "calprompt transfer" in capsys.readouterr().err


def test_the_command_compares_models(tmp_path: Path, capsys: Any) -> None:
    """Two models of the same pictures, on what they stored, and on other pictures."""
    other = fits.classifier(loss="tcpt", seed=2).fit(samples.pictures(), resources=fits.SHARED)
    folder = other.save(tmp_path / "other")
    stored = stored_contenders([fits.saved(), folder])
    model = fits.fitted().model_
    right = model.probabilities(model.predicted).argmax(axis=1) == model.predicted.labels
    assert value(compare_contenders(stored, resamples=10), "fitted-model") == pytest.approx(float(right.mean()))
    assert main(["compare", str(fits.saved()), str(folder), "--resamples", "20"]) == 0
    assert "other" in capsys.readouterr().out
    unseen = samples.picture_folder(tmp_path / "unseen", each=3)
    for number, path in enumerate(sorted(unseen.rglob("*.png"))):
        samples.picture(path, seed=5000 + number)
    measured = measured_contenders([fits.saved(), folder], str(unseen))
    expected = fits.fitted().evaluate(str(unseen)).metrics["accuracy"]
    assert value(compare_contenders(measured, resamples=10), "fitted-model") == pytest.approx(expected)
    with pytest.raises(SettingError, match="stands twice"):
        stored_contenders([fits.saved(), fits.saved()])

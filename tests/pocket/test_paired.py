"""Paired results: what is compared with what, by hand; and the tables, pages and figures made of them."""

from __future__ import annotations

from typing import Any

import paired_figures
import paired_tables
import pytest
from paired import Method, PairedResults
from paired_tables import PLAIN, TCPT, UNTUNED
from scipy.stats import ttest_rel

from calprompt.errors import DataError, UnknownNameError
from calprompt.evaluation.numbers import Number

TUNERS = ("coop", "kgcoop")


def row(loss: str, dataset: str, seed: int, accuracy: float, **more: Any) -> dict[str, Any]:
    usual = {"tuner": "coop", "model": "tuned", "calibrator": "none", "split": "base", "ece": 0.1, "nll": 0.1}
    confidence = {"mean_confidence": accuracy + 0.05}
    return {**usual, **confidence, "loss": loss, "dataset": dataset, "seed": seed, "accuracy": accuracy, **more}


def both(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The same on both halves."""
    return [{**each, "split": split} for each in rows for split in ("base", "novel")]


ACCURACY = {
    ("ce", "flags", 1): 0.50, ("ce", "flags", 2): 0.60, ("ce", "food", 1): 0.30, ("ce", "food", 2): 0.90,
    ("tcpt", "flags", 1): 0.54, ("tcpt", "flags", 2): 0.62, ("tcpt", "food", 1): 0.31,
}  # fmt: skip


def hand() -> PairedResults:
    """Flags and food, two seeds, of which food has only one with both losses."""
    rows = [row(*key, value) for key, value in ACCURACY.items()]
    return PairedResults(both(*rows), TUNERS)


def whole() -> PairedResults:
    """Zero-shot, cross-entropy and TCPT of two tuners, three datasets and two seeds."""
    rows = []
    for number, tuner in enumerate(TUNERS):
        for place, dataset in enumerate(("flags", "food", "signs")):
            for seed in (1, 2):
                for loss, model, gain in (("ce", "zero-shot", 0.0), ("ce", "tuned", 0.1), ("tcpt", "tuned", 0.12)):
                    for split in ("base", "novel"):
                        accuracy = 0.3 + 0.1 * place + 0.01 * seed + gain * (1 + number) * (split == "base")
                        extra = {"tuner": tuner, "model": model, "split": split, "mean_confidence": 0.5}
                        rows.append(row(loss, dataset, seed, accuracy, ece=abs(0.5 - accuracy), **extra))
    return PairedResults(rows, TUNERS)


def test_a_difference_is_paired_by_tuner_dataset_and_seed() -> None:
    found = hand()
    keys = found.shared([TCPT, PLAIN])
    assert [key[1:] for key in keys] == [("flags", 1), ("flags", 2), ("food", 1)]
    assert found.level(PLAIN, "base", "gap", keys) == pytest.approx(5.0)
    # flags: (4 + 2) / 2 = 3, food: 1; mean 2, deviation √2, half an interval 12.71
    difference = found.difference(TCPT, PLAIN, "base", "accuracy", keys)
    assert str(difference) == "+2.00 [-10.71, +14.71]"
    assert difference is not None
    assert not difference.excludes_zero


def test_against_scipy() -> None:
    """Datasets are the unit: a paired t test on their means."""
    first, second = [0.31, 0.54, 0.22, 0.9], [0.30, 0.50, 0.21, 0.85]
    rows = [row("tcpt", f"d{n}", 1, value) for n, value in enumerate(first)]
    rows += [row("ce", f"d{n}", 1, value) for n, value in enumerate(second)]
    found = PairedResults(rows, TUNERS)
    interval = found.difference(TCPT, PLAIN, "base", "accuracy", found.shared([TCPT, PLAIN]))
    expected = ttest_rel(first, second).confidence_interval()
    assert interval is not None
    assert interval.low == pytest.approx(100 * expected.low, rel=1e-4)
    assert interval.high == pytest.approx(100 * expected.high, rel=1e-4)


def test_what_was_not_run_has_no_difference() -> None:
    found = hand()
    assert found.difference(TCPT, PLAIN, "base", "accuracy", []) is None
    assert found.difference(Method("mbls"), PLAIN, "base", "accuracy", found.shared([PLAIN])) is None
    assert found.shared([Method("mbls"), PLAIN]) == []
    assert str(Number.over([2.0])) == "+2.00"


def test_duplicate_rows_of_a_run_are_reported() -> None:
    with pytest.raises(DataError, match=r"differ in their settings \(shots 4 or 16\)"):
        PairedResults([row("ce", "flags", seed, 0.5, shots=4 * seed**2) for seed in (1, 2)], TUNERS)
    with pytest.raises(DataError, match="two runs of CoOp on flags, base, seed 1 have other numbers"):
        PairedResults([row("ce", "flags", 1, 0.5), row("ce", "flags", 1, 0.6)], TUNERS)


def test_rows_without_numbers_and_of_other_tuners_are_left_out() -> None:
    lacking = {**row("ce", "flags", 1, 0.5), "accuracy": None}
    other = {**row("ce", "food", 1, 0.5), "tuner": "maple"}
    assert PairedResults([lacking, other, row("ce", "signs", 1, 0.5)], TUNERS).shared([PLAIN]) == [("coop", "signs", 1)]


def test_tables() -> None:
    found = whole()
    levels = paired_tables.named_table(found, "levels of accuracy", ("tcpt",))
    assert levels.splitlines()[2] == "| coop | 41.5 | 51.5 | 53.5 | 41.5 | 41.5 | 41.5 |"
    tuners = paired_tables.named_table(found, "tcpt - ce", ("tcpt",)).splitlines()
    assert tuners[0].startswith("| tuner | runs | accuracy, base | accuracy, novel |")
    assert tuners[3].startswith("| kgcoop | 6 | +4.00* [+4.00, +4.00] | +0.00 [+0.00, +0.00] |")
    halves = paired_tables.named_table(found, "halves apart", ("tcpt",)).splitlines()
    assert halves[-1].startswith("| all | 12 | +15.00* [+15.00, +15.00] | +18.00*")
    pairs = paired_tables.named_table(found, "losses", ("tcpt", "mbls")).splitlines()
    assert len(pairs) == 3, "MbLS was not run"
    assert pairs[2].startswith("| tcpt - ce | all | 12 | +3.00*")
    one = paired_tables.named_table(found, "losses of coop", ("tcpt",), ("focal",)).splitlines()
    assert one[2].startswith("| tcpt - ce | coop | 6 | +2.00*")
    cases = paired_tables.named_table(found, "by zero-shot", ("tcpt",)).splitlines()
    assert sum(int(line.split("|")[2]) for line in cases[2:]) == 2 * 3 * 2
    datasets = paired_tables.dataset_table(found, [UNTUNED, PLAIN, Method("mbls")], "coop").splitlines()
    assert datasets[0] == "| dataset | half | zero-shot | ce |"
    assert datasets[2] == "| flags | base | 31.5 / 18.5 | 41.5 / 8.5 |"
    with pytest.raises(UnknownNameError, match="levels of METRIC"):
        paired_tables.named_table(found, "levles", ("tcpt",))


def test_a_subset_has_the_same_numbers_of_fewer_runs() -> None:
    found = whole()
    keys = [key for key in found.shared([PLAIN]) if key[1] != "food"]
    fewer = found.subset(keys)
    assert fewer.shared([PLAIN, TCPT]) == keys
    assert fewer.level(PLAIN, "base", "ece", keys) == found.level(PLAIN, "base", "ece", keys)


def test_a_page_is_filled_at_its_places() -> None:
    page = "before\n<!-- tuned: losses of coop -->\nold\n<!-- end -->\nafter\n"
    filled = paired_tables.fill_page(page, lambda group, title: f"{group}, {title}")
    assert filled == "before\n<!-- tuned: losses of coop -->\n\ntuned, losses of coop\n\n<!-- end -->\nafter\n"
    assert paired_tables.fill_page(filled, lambda group, title: f"{group}, {title}") == filled


def test_figures_show_every_case() -> None:
    groups = {"short": whole(), "long": whole()}
    gaps = paired_figures.gap_figure(groups)
    assert [len(points.get_offsets()) for points in gaps.axes[0].collections] == [6, 6], "two tuners, three datasets"
    effects = paired_figures.effect_figure(groups)
    assert [label.get_text() for label in effects.axes[0].get_yticklabels()] == list(TUNERS)
    halves = paired_figures.halves_figure(whole(), ("flags", "food", "signs"), 2, "points")
    assert [text.get_text() for text in halves.axes[0].texts] == ["+10", "+20"] * 3

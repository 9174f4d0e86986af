"""The watch of images: false alarms no more often than stated, changes found, copies counted once, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.integrate import quad

from calprompt.errors import DamagedFileError, NewerFormatError, SettingError
from calprompt.promises import ImageWatch
from calprompt.promises.image_watch import REMEMBERED, SCORES, STEPS, bets, image_scores, tie_breaks
from calprompt.promises.watch import weight_from

FEW = np.array([[-2.0, 2.0]] * len(SCORES))  # whole numbers are 64 steps apart


def normal(seed: int, images: int, shift: float = 0.0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(images, 5)) + shift


def fresh(held_out: int = 100, **options: Any) -> ImageWatch:
    return ImageWatch.of(normal(0, held_out), normal(1, 200), **options)


def of_scores(held_out: list[list[int]], **options: Any) -> ImageWatch:
    """A watch of scores from -2 to 1, of which many are equal."""
    counts = [np.bincount([64 * (row[kind] + 2) for row in held_out], minlength=STEPS) for kind in range(len(SCORES))]
    return ImageWatch(counts, FEW, **options)


@pytest.mark.parametrize("number", range(len(bets(0.5, 0.5))))
def test_every_bet_is_fair(number: int) -> None:
    area, _ = quad(lambda p: float(bets(p, 1 - p)[number]), 0, 1)
    assert area == pytest.approx(1, abs=1e-9)


rows = st.lists(st.lists(st.integers(-2, 1), min_size=len(SCORES), max_size=len(SCORES)), min_size=1, max_size=12)


@given(rows, rows)
def test_evidence_equals_its_definition(held_out: list[list[int]], new: list[list[int]]) -> None:
    """Ranks by counting, and the sum over scores, densities and beginnings of a change."""
    watch = of_scores(held_out, false_alarms=1e-90)
    reference = watch.reference
    watch.see_scores(new)
    found = []
    for kind in range(len(SCORES)):
        pool, gains = [row[kind] for row in held_out], []
        for number, row in enumerate(new, start=1):
            pool.append(row[kind])
            below, equal = sum(each < row[kind] for each in pool), sum(each == row[kind] for each in pool)
            p = (below + tie_breaks(reference, number)[kind] * equal) / len(pool)
            gains.append(bets(p, 1 - p))
        total = weight_from(len(new) + 1)
        for begin in range(len(new)):
            weight = weight_from(begin + 1) - weight_from(begin + 2)
            total += weight * np.prod(gains[begin:], axis=0).mean()
        found.append(total)
    assert watch.evidence == pytest.approx(max(found) / len(SCORES), rel=1e-9)


@pytest.mark.parametrize(("held_out", "digits"), [(5, 6), (20, 0), (80, 6)])
def test_clean_streams_alarm_no_more_often_than_stated(held_out: int, digits: int) -> None:
    """600 streams of 120 images at once, by ranks among all scores so far; at 10 %, so that there are some alarms."""
    rng, streams, length, stated = np.random.default_rng(held_out), 600, 120, 0.1
    shape = (held_out + length, len(SCORES), streams)
    scores = (rng.normal(size=(shape[0], 1, streams)) + 0.5 * rng.normal(size=shape)).round(digits).astype(np.float32)
    sums, highest = np.zeros((len(SCORES), streams, len(bets(0.5, 0.5)))), np.zeros(streams)
    for number in range(1, length + 1):
        pool = scores[: held_out + number]
        below, equal = (pool < pool[-1]).sum(axis=0), (pool == pool[-1]).sum(axis=0)
        p = (below + rng.random(below.shape) * equal) / len(pool)
        stake = (weight_from(number) - weight_from(number + 1)) / sums.shape[2]
        sums = (sums + stake) * bets(p, 1 - p)
        highest = np.maximum(highest, (sums.sum(axis=2).max(axis=0) + weight_from(number + 1)) / len(SCORES))
    alarms = int((highest >= 1 / stated).sum())
    assert 0 < alarms <= stated * streams + 3 * np.sqrt(stated * streams), f"{alarms} of {streams}"


def test_unfamiliar_images_are_found_after_many_familiar_ones() -> None:
    for clean, most in ((0, 60), (500, 60)):
        watch = fresh()
        watch.see(normal(2, clean))
        assert not watch.changed
        watch.see(normal(3, 200, shift=1.5))
        assert clean < (watch.changed_at or 0) <= clean + most
        assert watch.seen == watch.changed_at, "after an alarm nothing is compared"
        assert "not like those the model was fitted on" in watch.sentence
        assert "at most one model in 100" in watch.sentence
        assert watch.state()["status"] == "changed"
        assert "calprompt evaluate" in watch.state()["advice"]


def test_status_before_an_alarm() -> None:
    watch = fresh()
    assert watch.sentence.startswith("No new image was seen yet")
    watch.see(normal(2, 1))
    assert watch.sentence == "No sign so far (1 image) that images are not like those the model was fitted on."
    watch = fresh(false_alarms=1e-90)
    watch.see(normal(3, 30, shift=2))
    assert watch.evidence > 10
    assert "may still be chance" in watch.sentence


def test_a_burst_of_one_image_counts_once() -> None:
    burst = np.repeat(normal(2, 1), 1_000, axis=0)
    watch = fresh()
    watch.see(burst, ["a" * 64] * len(burst))
    assert (watch.seen, watch.repeated, watch.changed) == (1, 999, False)
    unaware = fresh()
    unaware.see(burst)
    assert unaware.changed, "which is why contents are compared"


def test_images_of_the_fit_do_not_count() -> None:
    watch = fresh(known=["b" * 64])
    watch.see(normal(2, 2), ["b" * 64, "c" * 64])
    assert (watch.seen, watch.repeated) == (1, 1)


def test_remembered_digests_are_bounded() -> None:
    watch = fresh(false_alarms=1e-90)
    size = len(json.dumps(watch.to_dict()))
    for start in range(0, REMEMBERED + 500, 500):
        for number in range(start, start + 500):
            watch._is_copy(f"{number:016x}")
    record = watch.to_dict()
    assert len(record["recent"]) == REMEMBERED
    assert record["recent"][-1] == f"{REMEMBERED + 499:016x}"
    assert len(json.dumps(record)) < size + 25 * REMEMBERED


@settings(max_examples=25)
@given(st.integers(0, 60), st.floats(0, 2))
def test_record_restores_the_watch_bit_for_bit(cut: int, shift: float) -> None:
    images, digests = normal(2, 60, shift), [f"{number % 50:064x}" for number in range(60)]
    whole, first = fresh(known=["x"]), fresh(known=["x"])
    whole.see(images, digests)
    first.see(images[:cut], digests[:cut])
    second = ImageWatch.from_dict(json.loads(json.dumps(first.to_dict())), known=["x"])
    second.see(images[cut:], digests[cut:])
    assert second.to_dict() == whole.to_dict()
    assert second.state() == whole.state()


def test_scores_that_are_not_finite_do_not_crash_the_watch() -> None:
    watch = fresh()
    with np.errstate(all="ignore"):
        watch.see(np.array([[np.nan] * 5, [np.inf] * 5, [1e308, -1e308, 0, 0, 0]]))
    assert watch.seen == 3
    assert np.isfinite(watch.evidence)


def test_all_images_equal_says_nothing() -> None:
    same = np.ones((50, 5))
    watch = ImageWatch.of(same, same)
    watch.see(np.ones((300, 5)))
    assert not watch.changed


def test_it_needs_images_to_compare_with() -> None:
    with pytest.raises(SettingError, match="no held-out images"):
        ImageWatch.of(np.empty((0, 5)), normal(0, 3))
    with pytest.raises(SettingError, match="false_alarms must be between"):
        fresh(false_alarms=0.7)


def test_weights_of_another_precision_are_compared_with_their_own_scores() -> None:
    watch, other = fresh(), fresh().compared_with(normal(0, 100, shift=3))
    assert other.reference != watch.reference
    other.see(normal(4, 100, shift=3))
    assert not other.changed


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seen": 7}, "contradicts itself"),
        ({"seen": "many"}, "contradicts itself|not the record"),
        ({"counts": [[1]]}, "contradicts itself|not the record"),
        ({"sums": [[-1.0]]}, "contradicts itself|not the record"),
        ({"ranges": None}, "not the record"),
        ({"changed_at": 3}, "contradicts itself"),
        ({"format": 99}, "update calprompt"),
    ],
)
def test_a_damaged_record_is_refused(change: dict[str, Any], problem: str) -> None:
    watch = fresh()
    watch.see(normal(2, 5))
    kind = NewerFormatError if "format" in change else DamagedFileError
    with pytest.raises(kind, match=problem):
        ImageWatch.from_dict({**watch.to_dict(), **change})


def test_files_of_other_watches_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "watch.json"
    watch = fresh()
    assert watch.resumed(path) is watch
    watch.see(normal(2, 20))
    watch.save(path)
    assert fresh().resumed(path).to_dict() == watch.to_dict()
    assert json.loads(path.read_text())["sentence"] == watch.sentence
    with pytest.raises(SettingError, match="another model; give another file"):
        fresh(held_out=90).resumed(path)
    with pytest.raises(SettingError, match=r"false_alarms=0\.01"):
        fresh(false_alarms=0.05).resumed(path)
    path.write_text("{}")
    with pytest.raises(DamagedFileError, match=r"watch\.json: .*remove the file"):
        fresh().resumed(path)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from calprompt.promises import ImageWatch

rng = np.random.default_rng(0)
watch = ImageWatch.of(rng.normal(size=(50, 5)), rng.normal(size=(50, 5)), false_alarms=1e-90)
while True:
    watch.see(rng.normal(size=(1, 5)), [rng.bytes(32).hex()])
    watch.save(Path(sys.argv[1]))
"""


def test_a_killed_process_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    for _ in range(3):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as process:
            end = time.monotonic() + 20
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
        found = ImageWatch.from_dict(json.loads(path.read_text()))
        assert found.seen >= 1
        assert found.held_out == 50


def test_scores_follow_from_the_logits_alone() -> None:
    logits = normal(0, 4)
    energy, contrast, mean = image_scores(logits, 2.0).T
    assert energy == pytest.approx(2 * np.log(np.exp(logits / 2).sum(axis=1)))
    assert contrast == pytest.approx(logits.max(axis=1) - mean)

"""The watch of images: how often it raises a false alarm, and how soon it finds images of another kind.

    python benchmarks/image_watch.py

First with scores drawn from a normal distribution, then with a classifier fitted on half of the test pictures of
pocket_animals: the other half is what it was fitted on, and the four shifts of pocket_animals are not. Everything is
drawn anew for each stream: the held-out images, and the order of the others. The first streams are also given to the
library's own watch, one image at a time, which must say the same.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.promises.image_watch import SCORES, STEPS, ImageWatch, bets, image_scores, step_counts, tie_breaks
from calprompt.promises.watch import weight_from

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.01
SHIFTS = ("posed", "line", "corrupted", "sketch")
CHECKED = 2  # streams of each simulation that the library is given too


def first_alarms(
    scores: Floats, held_out: int, ranges: Floats, rng: np.random.Generator, *, joining: bool = True
) -> NDArray[np.int64]:
    """The image with which each stream alarms, 0 if none does: `ImageWatch` for many streams at once.

    Args:
        scores: Of held-out images and then of the stream, [streams, images, scores].
        held_out: How many are held out.
        ranges: Of the steps, [scores, 2].
        rng: Breaks ties; for the streams that are checked, the library does.
        joining: Whether images join those that the next ones are compared with, as they must.
    """
    streams, images, kinds = scores.shape
    share = (scores - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])
    steps = np.clip(np.floor(STEPS * share), 0, STEPS - 1).astype(np.int64)
    row, kind, every = np.arange(streams)[:, None], np.arange(kinds), np.arange(STEPS)
    upto = np.zeros((streams, kinds, STEPS + 1), dtype=np.float32)  # images below each step
    for step in steps[:, :held_out].transpose(1, 0, 2):
        upto[:, :, 1:] += every >= step[:, :, None]
    checked = [_watch(scores[number, :held_out], ranges) for number in range(CHECKED)] if joining else []
    found, sums = np.zeros(streams, dtype=np.int64), np.zeros((streams, kinds, len(bets(0.5, 0.5))))
    for number in range(1, images - held_out + 1):
        step = steps[:, held_out + number - 1]
        if joining:
            upto[:, :, 1:] += every >= step[:, :, None]
            below, equal = upto[row, kind, step], upto[row, kind, step + 1] - upto[row, kind, step]
        else:
            below, equal = upto[row, kind, step], upto[row, kind, step + 1] - upto[row, kind, step] + 1
        tau = rng.random((streams, kinds))
        for place, watch in enumerate(checked):
            tau[place] = tie_breaks(watch.reference, number)
        total = held_out + (number if joining else 1)
        low = (below + tau * equal) / total
        stake = (weight_from(number) - weight_from(number + 1)) / sums.shape[2]
        sums = (sums + stake) * bets(low, 1 - low)
        evidence = (sums.sum(axis=2).max(axis=1) + weight_from(number + 1)) / kinds
        found[(evidence >= 1 / FALSE_ALARMS) & (found == 0)] = number
        sums[found > 0] = 0
    for place, watch in enumerate(checked):
        watch.see_scores(scores[place, held_out:])
        assert (watch.changed_at or 0) == found[place], "what is simulated here is what the library does"
    return found


def _watch(scores: Floats, ranges: Floats) -> ImageWatch:
    return ImageWatch(step_counts(scores, ranges), ranges, false_alarms=FALSE_ALARMS)


def simulated(count: int = 1_000, length: int = 5_000) -> None:
    print(f"{count} clean streams of {length} images, scores drawn from a normal distribution: share with an alarm")
    print("  held out   watch   if images were compared with the held-out ones alone")
    mixing = np.array([[1.0, 0.6, 0.3], [0.0, 0.8, -0.4], [0.0, 0.0, 0.87]])  # scores of an image depend on each other
    ranges = np.array([[-5.0, 5.0]] * len(SCORES))
    for held_out in (20, 60, 200, 1_000):
        rng = np.random.default_rng(held_out)
        shares = []
        for joining in (True, False):
            alarms = [
                first_alarms(part @ mixing, held_out, ranges, rng, joining=joining)
                for part in (rng.normal(size=(count // 10, held_out + length, len(SCORES))) for _ in range(10))
            ]
            shares.append((np.concatenate(alarms) > 0).mean())
        print(f"  {held_out:8} {shares[0]:7.1%} {shares[1]:8.1%}", flush=True)


def on_pictures(count: int = 1_000, shifted: int = 200) -> None:
    alike, labels, others, ranges = pictures()
    rng = np.random.default_rng(0)

    def drawn(streams: int, held_out: int, length: int) -> Floats:
        return np.stack([alike[rng.permutation(len(alike))[: held_out + length]] for _ in range(streams)])

    print(f"\n{count} clean streams of 1,500 pictures that the model was not tuned on: share with an alarm")
    for held_out in (20, 60, 200, 1_000):
        alarms = first_alarms(drawn(count, held_out, 1_500), held_out, ranges, rng)
        print(f"  {held_out:5} held out: {(alarms > 0).mean():.1%}", flush=True)
    streams = np.stack([alike[in_proportion(labels, 3, rng)] for _ in range(count)])
    classes = len(np.unique(labels))
    alarms = first_alarms(streams[:, : 3 * classes + 1_500], 3 * classes, ranges, rng)
    print(f"  {3 * classes:5} held out, 3 of each class: {(alarms > 0).mean():.1%}", flush=True)
    print(f"\nshifts, {shifted} streams each: found within 1,000 shifted pictures, median and 90 % delay")
    for held_out in (60, 200, 800):
        for clean in (0, 100, 1_000):
            for name in SHIFTS:
                end = np.stack([others[name][rng.permutation(len(others[name]))[:1_000]] for _ in range(shifted)])
                start = drawn(shifted, held_out, clean)
                alarms = first_alarms(np.concatenate([start, end], axis=1), held_out, ranges, rng)
                early = (alarms > 0) & (alarms <= clean)
                late = np.where(alarms > 0, alarms - clean, np.inf)[~early]
                middle, most = np.quantile(late, [0.5, 0.9], method="inverted_cdf")
                print(
                    f"  {held_out:4} held out, {clean:5} clean, {name:10} {np.isfinite(late).mean():6.1%} "
                    f"{middle:5.0f} {most:5.0f}   false alarms before: {early.mean():.1%}",
                    flush=True,
                )


def in_proportion(labels: NDArray[np.int64], each: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """An order of pictures that begins with so many of each class, as held-out ones are taken."""
    order = rng.permutation(len(labels))
    rank = np.empty(len(order), dtype=np.int64)
    for label in np.unique(labels):
        own = labels[order] == label
        rank[own] = np.arange(own.sum())
    first = rank < each
    return np.concatenate([order[first], order[~first]])


def pictures() -> tuple[Floats, NDArray[np.int64], dict[str, Floats], Floats]:
    """Scores and labels of pictures that the model was not tuned on, scores of shifted ones, and the ranges."""
    import torch

    from calprompt import Classifier, pocket

    torch.set_num_threads(1)
    sheet = pocket.sheet("animals")
    every = [(label, pixels) for label, _, pixels in sheet.pictures("test")]
    order = np.random.default_rng(0).permutation(len(every)).tolist()
    mine, rest = ([every[index] for index in part] for part in (order[: len(order) // 2], order[len(order) // 2 :]))
    settings = {"shots": 8, "verbose": False, "template": sheet.record["template"]}
    model = Classifier("pocket", **settings).fit(
        [pixels for _, pixels in mine], [sheet.class_names[label] for label, _ in mine]
    )
    watch = model.model_.image_watch()
    assert watch is not None

    def scores(images: list[NDArray[np.uint8]]) -> Floats:
        return watch.scores(np.concatenate([batch.logits.numpy() for batch in model.predictor_.stream(images)]))

    found = model.model_.predicted
    held = found.fold < 0
    alike = np.concatenate([image_scores(found.logits[held], watch.temperature), scores([each for _, each in rest])])
    names = np.array([sheet.class_names.index(str(label)) for label in model.model_.labels])
    labels = np.concatenate([names[found.labels[held]], [label for label, _ in rest]])
    print(f"\npocket_animals: tuned on {(~held).sum()} pictures, {len(alike)} others")
    print(
        f"  right on {right(model, [(sheet.class_names[label], pixels) for label, pixels in rest]):.1%} of the others"
    )
    others = {}
    for name in SHIFTS:
        shifted = pocket.sheet(f"animals_{name}")
        own = [(shifted.class_names[label], pixels) for label, _, pixels in shifted.pictures("test")]
        others[name] = scores([pixels for _, pixels in own])
        print(f"  right on {right(model, own):.1%} of {len(own)} pictures, {name}", flush=True)
    return alike, labels, others, np.array(watch.to_dict()["ranges"])


def right(model: Any, images: list[tuple[str, NDArray[np.uint8]]]) -> float:
    """How often the most probable class is the true one."""
    predicted = model.predict([pixels for _, pixels in images])
    return float(np.mean([guess == name for guess, (name, _) in zip(predicted, images, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("simulated", "pictures"), help="one of the two parts")
    args = parser.parse_args()
    start = time.process_time()
    if args.only != "pictures":
        simulated()
    if args.only != "simulated":
        on_pictures()
    print(f"\n{time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()

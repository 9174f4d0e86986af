"""Watching whether images are like those a model was fitted on, without marks: a conformal test martingale.

Scores of an image say, from its logits alone, how well it suits the classes. With the scores s_i of n held-out images
at hand, the t-th new image has the smoothed conformal p-value (Vovk, Gammerman and Shafer, 2005)

    p_t = (#{i: s_i < s_t} + τ_t · #{i: s_i = s_t}) / (n + t)        τ_t uniform on (0, 1)

where i runs over the held-out images, the new ones so far and itself. If all of them are exchangeable, such as drawn at
random from one source, p_1, p_2, … are independent and uniform, whatever the score and however few are held out. That
is why each new image joins those it is compared with: p-values against the held-out images alone depend on each other
through them, and the difference of these from their source, which chance makes, would raise an alarm in the end.

Against uniform p-values one bets with densities f on (0, 1), ∫ f = 1, and a change may begin at any image:

    S_t(f) = (S_{t−1}(f) + w_t / F) · f(p_t)         the change began at some j ≤ t, with weight w_j; F densities
    K_t    = Σ_f S_t(f) + (w_{t+1} + w_{t+2} + …)    the evidence; weights as in `watch`

E[f(p_t) | p before] = 1, so K is a nonnegative martingale with K_0 = 1, and P(K_t ≥ 1/α for any t) ≤ α by Ville's
inequality. There is one K for each of m scores. The evidence is the largest of them divided by m, so that by the union
bound an alarm at 1/α is false for at most a share α of models, however many images there are and however often one
looks. (Their mean would not do: each K is a martingale given its own p-values, not given those of all scores.)

Scores are rounded to one of 256 steps, which other images than the held-out ones fix. Equal scores are told apart by τ,
so this costs a little sharpness and no validity, and a count for each step is all there is to keep: memory does not
grow with the number of images.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calprompt.errors import DamagedFileError, Parameter, SettingError
from calprompt.files import failing_as, json_digest, read_json, write_bytes
from calprompt.kernel import open_set_scores
from calprompt.metrics.inputs import ArrayLike
from calprompt.promises.conformal import Floats
from calprompt.promises.watch import SUSPICIOUS_EVIDENCE, checked_false_alarms, format_number, weight_from
from calprompt.text import plural

SCORES = ("energy", "contrast", "mean logit")
STEPS = 256
SPREAD = 5.0  # standard deviations of a score, either way, that the steps cover
POWERS = (1, 3, 9)
CAUTION = (0.0, 0.5)  # share of a stake that is not bet
REMEMBERED = 10_000  # images whose repetition does not count
DIGITS = 16  # of a digest
STATE = ("reference", "held_out", "seen", "repeated", "changed_at")  # what a record has beside counts
FORMAT = 1
IMAGES_ALIKE, CHANGED, UNWATCHED = "alike", "changed", "unwatched"
NOT_WATCHED = "Whether images are like those the model was fitted on is not watched"
NO_HELD_OUT = f"{NOT_WATCHED}: it has no held-out images to compare them with."
ADVICE = (
    "Label some of them and run 'calprompt evaluate' on them; if the model does worse there, fit it again with them."
)


def image_scores(logits: ArrayLike, temperature: float) -> Floats:
    """The scores that are watched, [n, 3]: energy, contrast (see `OpenSetRule`) and the mean logit.

    >>> image_scores([[3.0, 1.0]], 1.0).round(3).tolist()
    [[3.127, 1.0, 2.0]]
    """
    z = np.asarray(logits, dtype=np.float64)
    parts = (open_set_scores(z, "energy", temperature), open_set_scores(z, "contrast"), z.mean(axis=1))
    return np.stack(parts, axis=1)


def bets(below: ArrayLike | float, above: ArrayLike | float) -> Floats:
    """The densities at p-values, [..., F]: c + (1 − c) (k + 1) (1 − p)^k for low scores, the same with p for high ones.

    >>> bets(0.5, 0.5).tolist()
    [1.0, 0.5, 0.01953125, 1.0, 0.5, 0.01953125, 1.0, 0.75, 0.509765625, 1.0, 0.75, 0.509765625]
    """
    sides = (np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64))
    values = [c + (1 - c) * (k + 1) * side**k for c in CAUTION for side in sides for k in POWERS]
    return np.stack(values, axis=-1)


class ImageWatch:
    """The images that a model has seen since it was fitted, and whether they are like those it was fitted on.

    An alarm comes when the evidence against that reaches 1 / `false_alarms`; the top of this module says why it is
    false so rarely. It stays, and nothing is compared any more. `see` changes the watch; the same images in the same
    order always give the same state, because τ follows from the model and the number of the image.

    Args:
        counts: Held-out images at each step of each score, [scores, 256].
        ranges: Lowest and highest score of the steps, [scores, 2].
        temperature: Temperature of the energy score.
        known: Digests of the images of the fit, which are like themselves and do not count.
        false_alarms: Share of models that alarm although their images are alike, at most; 0.5 or less.

    Attributes:
        held_out: Images that the model did not learn from, to compare with.
        seen: New images that were compared; copies, known images and those after an alarm are not among them.
        repeated: New images that were left out because they were seen before.
        changed_at: The image with which the alarm came, counted from 1; None: there was none.
        reference: Digest of what images are compared with, the same for all watches of a model.

    >>> rng = np.random.default_rng(0)
    >>> watch = ImageWatch.of(rng.normal(size=(100, 5)), rng.normal(size=(100, 5)))
    >>> watch.see(rng.normal(size=(200, 5)))
    >>> watch.sentence
    'No sign so far (200 images) that images are not like those the model was fitted on.'
    >>> watch.see(rng.normal(size=(100, 5)) + 2)
    >>> watch.changed, watch.changed_at
    (True, 208)
    """

    def __init__(
        self,
        counts: ArrayLike,
        ranges: ArrayLike,
        temperature: float = 1.0,
        *,
        known: Iterable[str] = (),
        false_alarms: float = 0.01,
    ) -> None:
        self.false_alarms = checked_false_alarms(false_alarms)
        self.temperature = float(temperature)
        self.known = frozenset(digest[:DIGITS] for digest in known)
        self.seen = self.repeated = 0
        self.changed_at: int | None = None
        self._counts = np.array(counts, dtype=np.int64)
        self._ranges = np.array(ranges, dtype=np.float64)
        self._sums = np.zeros((len(SCORES), 2 * len(CAUTION) * len(POWERS)))
        self._recent: dict[str, None] = {}
        self.held_out = int(self._counts[0].sum())
        parts = [self._ranges.tolist(), self._counts.tolist(), self.temperature]
        self.reference = json_digest(parts)[:DIGITS]

    @classmethod
    def of(
        cls,
        held_out: ArrayLike,  # logits of images that the model did not learn from, before calibration, [n, C]
        others: ArrayLike,  # logits of other images of the kind, which only fix the steps of the scores, [m, C]
        temperature: float = 1.0,
        *,
        known: Iterable[str] = (),  # digests of the images of the fit
        false_alarms: float = 0.01,  # share of models that alarm although their images are alike, at most
    ) -> ImageWatch:
        """A watch that has seen nothing yet."""
        if not len(np.asarray(held_out)) or not len(np.asarray(others)):
            raise SettingError("images cannot be watched: there are no held-out images to compare them with")
        scale = image_scores(others, temperature)
        middle, spread = np.median(scale, axis=0), SPREAD * scale.std(axis=0)
        spread = np.maximum(spread, 1e-6 * np.maximum(1.0, abs(middle)))
        ranges = np.stack([middle - spread, middle + spread], axis=1)
        counts = step_counts(image_scores(held_out, temperature), ranges)
        return cls(counts, ranges, temperature, known=known, false_alarms=false_alarms)

    def see(self, logits: ArrayLike, digests: Sequence[str] | None = None) -> None:
        """Compare more images.

        Args:
            logits: Before calibration, [n, C], in the order in which the images came. Images that come sorted, such as
                class by class, must be shuffled first.
            digests: Digest of each image's content. An image that was seen among the last 10,000, or belongs to the
                fit, says nothing new and does not count. None: all count.
        """
        self.see_scores(self.scores(logits), digests)

    def scores(self, logits: ArrayLike) -> Floats:
        """What `see_scores` takes, [n, 3], from logits [n, C]."""
        return image_scores(logits, self.temperature)

    def see_scores(self, scores: ArrayLike, digests: Sequence[str] | None = None) -> None:
        """The same as `see`, where only the scores of the images were kept."""
        steps = _steps(np.asarray(scores, dtype=np.float64).reshape(-1, len(SCORES)), self._ranges)
        for number, step in enumerate(steps):
            if self.changed:
                return
            if digests is not None and self._is_copy(digests[number][:DIGITS]):
                self.repeated += 1
            else:
                self._compare(step)

    @property
    def evidence(self) -> float:
        """Against the images being alike; an alarm comes when it reaches 1 / `false_alarms`."""
        return float((self._sums.sum(axis=1).max() + weight_from(self.seen + 1)) / len(SCORES))

    @property
    def changed(self) -> bool:
        """Whether there was an alarm."""
        return self.changed_at is not None

    @property
    def sentence(self) -> str:
        """What follows for the images seen."""
        images = plural(self.seen, "image")
        if self.changed_at is not None:
            return (
                "These images are not like those the model was fitted on, or come in another mix of classes, so its "
                f"promises may not hold for them (seen after {images}; of images that are alike this is said for at "
                f"most one model in {math.floor(1 / self.false_alarms)})."
            )
        if not self.seen:
            return (
                "No new image was seen yet, so nothing is known of whether they are like those the model was fitted on."
            )
        if self.evidence >= SUSPICIOUS_EVIDENCE:
            return f"So far ({images}) they may not be like those the model was fitted on; that may still be chance."
        return f"No sign so far ({images}) that images are not like those the model was fitted on."

    def state(self) -> dict[str, Any]:
        """What people and programs want to know, as plain data."""
        return {
            "status": CHANGED if self.changed else IMAGES_ALIKE,
            "sentence": self.sentence,
            "advice": ADVICE if self.changed else None,
            **{name: getattr(self, name) for name in STATE[1:]},
            "evidence": self.evidence,
            "alarm": 1 / self.false_alarms,
            "false_alarm_rate": self.false_alarms,
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the digests of the fit as plain data, which JSON keeps exactly."""
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in ("false_alarms", "temperature", *STATE)},
            "ranges": self._ranges.tolist(),
            "counts": self._counts.tolist(),
            "sums": self._sums.tolist(),
            "recent": list(self._recent),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], *, known: Iterable[str] = ()) -> ImageWatch:
        """From what `to_dict` gave."""
        number = format_number(values, "the watch of images", FORMAT)
        try:
            alarms = values["false_alarms"]
            watch = cls(values["counts"], values["ranges"], values["temperature"], known=known, false_alarms=alarms)
            for name in STATE:
                setattr(watch, name, values[name])
            sums = np.array(values["sums"], dtype=np.float64)
            recent = values["recent"]
            sound = number == FORMAT and sums.shape == watch._sums.shape and isinstance(recent, list)
            watch._sums, watch._recent = sums, dict.fromkeys(map(str, recent))
            sound = sound and watch._is_sound()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DamagedFileError(f"this is not the record of a watch of images ({error})") from error
        if not sound:
            raise DamagedFileError("the record of a watch of images contradicts itself")
        return watch

    def fresh_record(self) -> dict[str, Any]:
        """What `from_record` makes a watch of: the same as `to_dict`, with the digests of the fit.

        >>> watch = ImageWatch.of([[0.0, 1.0]], [[0.0, 1.0]], known=["0123"])
        >>> ImageWatch.from_record(watch.fresh_record()).known
        frozenset({'0123'})
        """
        return {**self.to_dict(), "known": sorted(self.known)}

    def compared_with(self, held_out: ArrayLike) -> ImageWatch:
        """A watch that has seen nothing, by the same scores with other held-out images."""
        counts = step_counts(self.scores(held_out), self._ranges)
        return ImageWatch(counts, self._ranges, self.temperature, known=self.known, false_alarms=self.false_alarms)

    @classmethod
    def from_record(cls, record: dict[str, Any], *, false_alarms: float = 0.01) -> ImageWatch:
        """A watch that has seen nothing, from what a model has of it."""
        return cls.from_dict({**record, "false_alarms": false_alarms}, known=record["known"])

    def save(self, path: Path) -> None:
        """Write it to a JSON file, in one step: whoever reads the file, even after a crash, sees a whole state."""
        values = {"status": CHANGED if self.changed else IMAGES_ALIKE, "sentence": self.sentence, **self.to_dict()}
        with failing_as(f"the watch of images cannot be written to {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, json.dumps(values).encode() + b"\n")

    def resumed(self, path: Path) -> ImageWatch:
        """The watch that `save` wrote, to go on with; this one, if there is no such file."""
        if not path.exists():
            return self
        values = read_json(path)
        try:
            found = ImageWatch.from_dict(values, known=self.known)
        except DamagedFileError as error:
            raise type(error)(f"{path}: {error}; remove the file to begin anew") from error
        if found.reference != self.reference:
            raise SettingError(
                f"{path} is of another model; give another file with ", Parameter("watch", "FILE"), ", or remove it"
            )
        if found.false_alarms != self.false_alarms:
            raise SettingError(
                f"{path} was begun with ",
                Parameter("false_alarms", f"{found.false_alarms:g}"),
                f", and {self.false_alarms:g} is asked for; give another file with ",
                Parameter("watch", "FILE"),
                ", or remove it",
            )
        return found

    def _is_copy(self, digest: str) -> bool:
        """Whether an image is known; if it is not, it is from now on."""
        if digest in self.known or digest in self._recent:
            return True
        self._recent[digest] = None
        if len(self._recent) > REMEMBERED:
            del self._recent[next(iter(self._recent))]
        return False

    def _compare(self, step: NDArray[np.int64]) -> None:
        self.seen += 1
        rows = np.arange(len(SCORES))
        self._counts[rows, step] += 1
        below = np.array([self._counts[row, : step[row]].sum() for row in rows], dtype=np.float64)
        equal = self._counts[rows, step]
        tau = tie_breaks(self.reference, self.seen)
        total = self.held_out + self.seen
        low, high = (below + tau * equal) / total, (total - below - equal + (1 - tau) * equal) / total
        stake = (weight_from(self.seen) - weight_from(self.seen + 1)) / self._sums.shape[1]
        self._sums = (self._sums + stake) * bets(low, high)
        if self.evidence >= 1 / self.false_alarms:
            self.changed_at = self.seen

    def _is_sound(self) -> bool:
        counts = (self.held_out, self.seen, self.repeated)
        return (
            all(type(count) is int and count >= 0 for count in counts)
            and self._counts.shape == (len(SCORES), STEPS)
            and bool((self._counts >= 0).all())
            and bool((self._counts.sum(axis=1) == self.held_out + self.seen).all())
            and self._ranges.shape == (len(SCORES), 2)
            and bool((self._ranges[:, 0] < self._ranges[:, 1]).all())
            and bool(np.isfinite(self._sums).all() and (self._sums >= 0).all())
            and len(self._recent) <= REMEMBERED
            and (self.evidence >= 1 / self.false_alarms) == self.changed
            and self.changed_at in (None, self.seen)
        )


def tie_breaks(reference: str, number: int) -> Floats:
    """τ of each score for the image of this number: as good as uniform on (0, 1), and the same on every machine.

    >>> tie_breaks("a model", 1).round(4).tolist()
    [0.9259, 0.0142, 0.1931]
    """
    digest = hashlib.sha256(f"{reference} {number}".encode()).digest()
    return np.asarray((np.frombuffer(digest, dtype="<u4")[: len(SCORES)] + 0.5) / 2**32)


def step_counts(scores: Floats, ranges: Floats) -> NDArray[np.int64]:
    """How many images are at each step of each score, [scores, steps]."""
    return np.stack([np.bincount(column, minlength=STEPS) for column in _steps(scores, ranges).T])


def _steps(scores: Floats, ranges: Floats) -> NDArray[np.int64]:
    """The step of each score, [n, scores]."""
    with np.errstate(over="ignore", invalid="ignore"):
        share = (scores - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])
    return np.nan_to_num(np.clip(np.floor(STEPS * share), 0, STEPS - 1)).astype(np.int64)


def unwatched(why: str = NO_HELD_OUT) -> dict[str, Any]:
    """What `ImageWatch.state` gives, for a model whose images are not watched."""
    names = ("advice", "held_out", "evidence", "alarm", "false_alarm_rate", "changed_at")
    return {"status": UNWATCHED, "sentence": why, "seen": 0, "repeated": 0, **dict.fromkeys(names)}

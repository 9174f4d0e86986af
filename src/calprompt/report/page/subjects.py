"""The runs that a page looks at closely: on each dataset the first seed of the methods that the headline compares."""

from __future__ import annotations

from dataclasses import dataclass

from calprompt.evaluation.models import PARTS, TUNED, ZERO_SHOT
from calprompt.report.page.measured import Measurements, Result
from calprompt.results.methods import Method, headline_pairs
from calprompt.results.stored import StoredRun

MOST = 4  # datasets that are looked at closely


@dataclass(frozen=True, eq=False)
class Subject:
    """A run to look at.

    Attributes:
        dataset: Its data.
        method: Which.
        seed: Of the run; None for the untuned model.
        place: Of the run in `Report.runs`.
        stored: Its logits.
        results: By split.
    """

    dataset: str
    method: Method
    seed: int | None
    place: int
    stored: StoredRun
    results: dict[str, Result]

    @property
    def model(self) -> str:
        return ZERO_SHOT if self.method.is_zero_shot else TUNED

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.method.name}" + ("" if self.seed is None else f", seed {self.seed}")


def subjects(measured: Measurements, *, plain: bool = False) -> list[Subject]:
    """The first seed of the headline's method on each dataset, of a few datasets; none without stored logits.

    Args:
        measured: All results.
        plain: Those of the method that it is compared with as well, before it.
    """
    pairs = headline_pairs(measured.methods)
    wanted = list(pairs[0] if plain else pairs[0][1:]) if pairs else measured.methods[:1]
    found: list[Subject] = []
    for dataset in measured.datasets:
        for method in wanted:
            results = [each for each in measured.where(dataset=dataset, method=method) if each.sample is not None]
            own = [each for each in results if each.split in PARTS]
            if own:
                place = own[0].runs[0]
                of_run = {each.split: each for each in own if place in each.runs}
                found.append(Subject(dataset, method, own[0].seed, place, measured.stored[place], of_run))
    shown = list(dict.fromkeys(subject.dataset for subject in found))[:MOST]
    return [subject for subject in found if subject.dataset in shown]

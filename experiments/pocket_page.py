"""The pages of results on the pocket, from the tables and the sweep files in experiments.

    python experiments/pocket_page.py write                  tables and figures of docs/pocket-results, pocket-tables, …
    python experiments/pocket_page.py show tuned_all coop    a tuner, dataset by dataset

A group of results is that of the sweep files that begin with its name: "tuned" on the nine datasets near to what the
model has seen, "tuned_far" on icons, signs and digits, "tuned_all" on all twelve, "tuned_five" on the three that have
five classes a half. "shifted" are runs of "tuned" on animals, tested on its shifts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import paired_figures as figures
import paired_tables as tables
from paired import SPLITS, PairedResults
from paired_tables import PLAIN, TCPT, UNTUNED, Method

from calprompt.report.reliability import save_figure
from calprompt.results.collecting import rows_by_run
from calprompt.results.table import read_table
from calprompt.sweep.sweep_file import read_sweep

HERE, DOCS = Path(__file__).parent, Path(__file__).parents[1] / "docs"
TABLE, ANCHORED, PHOTO, SWEEPS = (HERE / name for name in ("pocket.csv.xz", "anchor.csv.xz", "photo.csv.xz", "sweeps"))
SCALES = HERE / "photo_scales.json"
_PAGES = ("pocket-results", "pocket-tables", "anchor-results", "photo-results", "pocket-photo")
PAGES = tuple(DOCS / f"{name}.md" for name in _PAGES)
NEAR = ("photos", "clothes", "food", "animals", "faces", "sketch_nature", "flags", "sketch_things", "objects")
FAR, FIVE = ("digits", "signs", "icons"), ("photos", "clothes", "digits")
SHIFTS = ("animals_posed", "animals_line", "animals_corrupted", "animals_sketch")
TUNERS = ("coop", "cocoop", "maple", "kgcoop", "proda", "prograd", "promptsrc")
LOSSES = ("tcpt", "margin_only", "moments_only", "mbls", "zs_norm", "penalty")
PARTS = (  # what the paper takes TCPT apart into, and what could stand in its place
    *("margin_mean_only", "margin_variance_only", "mean_moment_only", "covariance_only", "margin_l1", "margin_l2"),
    *("margin_similarity", "label_smoothing", "focal"),
)
VARIANTS = {
    "words": "starting from “a photo of a”",
    "sharp": "logit scale 50",
    "calibrated": "a calibrated logit scale",
    "few": "2 shots",
    "long": "50 epochs",
    "depth1": "text tower of 1 block, trained anew",
    "depth3": "3 blocks, trained anew",
    "depth6": "6 blocks",
}
TOWERS = ("tower-1", "tower-2")  # text towers of other seeds, under the same eyes
SMALL = ("parts", "lambda", "alpha")  # the paper's smaller tables on pocket-photo
TITLES = {"published settings": "published_all", "settings for this model": "tuned_all"}


@cache
def runs(table: Path = TABLE) -> dict[str, list[Mapping[str, Any]]]:
    return rows_by_run(read_table(table))


@cache
def sweep_keys(file: Path) -> list[str]:
    """The keys of the runs of a sweep file, which several groups read."""
    return [cell.key for cell in read_sweep(file).cells]


def rows(group: str, *table: Path) -> Iterable[Mapping[str, Any]]:
    """The rows of a group's sweep files; of a depth, those of that model."""
    name, backbone = ("depths", f"runs/pocket/{group}") if group.startswith("depth") else (group, None)
    files = sorted(file for file in SWEEPS.glob("*.yaml") if file.stem == name or file.stem.startswith(f"{name}-"))
    for key in dict.fromkeys(key for file in files for key in sweep_keys(file)):
        for row in runs(*table).get(key, ()):
            data, _, split = str(row["split"]).rpartition("/")
            if bool(data) == (group == "shifted") and backbone in (None, row["backbone"]):
                yield {**row, "split": split, "dataset": (data or row["dataset"]).removeprefix("pocket_")}


@cache
def results(name: str) -> PairedResults:
    group, _, which = name.partition("_")
    near = SHIFTS if group == "shifted" else NEAR
    datasets = {"": near, "far": FAR, "all": (*near, *FAR), "five": FIVE}[which]
    tuners = [each for each in TUNERS if (group, each) != ("published", "proda") or which == "five"]  # run there alone
    found = PairedResults((row for row in rows(group) if row["dataset"] in datasets), tuners)
    found.tuners = TUNERS
    return found


@cache
def page_table(group: str, title: str) -> str:
    if group == "crops":
        return crops()
    if group == "anchored":
        return anchored_table(title)
    if group == "photo":
        return photo_table(title)
    if title == "the answer":  # to the paper's headline
        return tables.pair_table(results(group), [(TCPT, PLAIN)], ("accuracy", "ece", "nll"))
    if group.startswith("variants"):
        return variants(group.removeprefix("variants"), title)
    return tables.named_table(results(group), title, LOSSES, PARTS)


def variants(which: str, title: str) -> str:
    """CoOp under settings that differ in one thing, each beside "tuned" on the same datasets and seeds."""
    first, second = {"ce - zero-shot": (PLAIN, UNTUNED), "tcpt - ce": (TCPT, PLAIN)}[title]
    metrics, lines = ("accuracy", "ece", "gap"), {}
    for group, label in VARIANTS.items():
        keys = results(f"{group}{which}").shared([PLAIN, TCPT], ["coop"])
        seeds = ", ".join(map(str, sorted({key[2] for key in keys})))
        where = f"as above, {len({key[1] for key in keys})} datasets, seed {seeds}"
        for name, found in ((where, results(f"tuned{which}").subset(keys)), (label, results(f"{group}{which}"))):
            row = tables.effect_row(found, first, second, metrics, ["coop"])
            if row:
                lines.setdefault((tuple(keys), name), [name, *row])
    return tables.markdown(["", *tables.effect_columns(metrics)], lines.values())


def crops() -> str:
    """CoOp as published, with a new crop of every shot in every epoch, against eight taken in turn."""
    new, lines, metrics = results("fresh_all"), [], ("accuracy", "ece", "gap")
    both = results("published_all").subset(new.shared([PLAIN, TCPT]))
    for (method, split, metric), values in new.values.items():
        both.values[Method(f"{method.loss}, new", method.calibrator), split, metric] = values
    for pair in (("ce, new", "ce"), ("tcpt, new", "tcpt"), ("tcpt, new", "ce, new"), ("tcpt", "ce")):
        lines.append([" - ".join(pair), *tables.effect_row(both, *map(Method, pair), metrics, ["coop"])])
    return tables.markdown(["", *tables.effect_columns(metrics)], lines)


@cache
def anchored() -> PairedResults:
    """Runs with an anchored logit scale, beside the same runs as they are."""
    tuned = (row for row in read_table(ANCHORED).rows if row["model"] == "tuned")
    new = [
        {**row, "loss": f"{row['loss']}, anchored", "dataset": row["dataset"].removeprefix("pocket_")} for row in tuned
    ]
    found = PairedResults(new, TUNERS)
    both = results("tuned_all").subset(found.shared([Method("ce, anchored"), Method("tcpt, anchored")]))
    both.values |= found.values
    return both


def anchored_table(title: str) -> str:
    """Levels of a metric, or differences over all tuners or one of them."""
    kind, _, what = title.partition(" of ")
    plain = (PLAIN, TCPT, Method("ce, anchored"), Method("tcpt, anchored"))
    if kind == "levels":
        methods = (*plain, Method("ce", "temperature"), Method("tcpt", "temperature"))
        columns = {f"{split}, {each}": (each, split, what) for split in SPLITS for each in methods}
        return tables.mean_table(anchored(), columns)
    pairs = [(plain[2], PLAIN), (plain[3], TCPT), (plain[3], plain[2]), (plain[3], PLAIN)]
    pairs.append((plain[3], Method("ce", "temperature")))
    return tables.pair_table(anchored(), pairs, ("accuracy", "ece", "nll"), [what] if what else None)


QUARTER = Method("ce, quarter rate")


@cache
def photo(digits: bool = False) -> PairedResults:
    """Runs on pocket-photo, where a quarter of the rate, an anchor and another tower make another loss.

    Of digits its zero-shot knows nothing, so that there is no calibration to keep: they are in no mean.
    """
    chosen = []
    for row in rows("photo", PHOTO):
        tower = row["backbone"].rpartition("/")[2]
        changes = {"anchored": row["anchor"] == "true", "quarter rate": row["lr"] == 0.0005}
        changes |= {tower: tower != "pocket-photo"}
        loss = ", ".join([row["loss"], *(name for name, changed in changes.items() if changed)])
        if (digits or row["dataset"] != "digits") and (loss == row["loss"] or row["model"] == "tuned"):
            chosen.append({**row, "loss": loss})
    return PairedResults(chosen, TUNERS)


def photo_table(title: str) -> str:
    """A table of docs/photo-results.md."""
    metrics, coop = ("accuracy", "ece", "nll"), ["coop"]
    if title == "the answer":
        pairs = [(TCPT, PLAIN), (QUARTER, PLAIN), (TCPT, QUARTER), (PLAIN, UNTUNED), (TCPT, UNTUNED)]
        return tables.pair_table(photo(), pairs, ("accuracy", "ece", "gap"), coop)
    if title == "ratios":
        return _ratios(photo(), [QUARTER, TCPT])
    if title == "datasets":
        return tables.dataset_table(photo(digits=True), [UNTUNED, PLAIN, QUARTER, TCPT], "coop")
    if title == "gaps":
        return _gaps(photo())
    if title == "losses":
        losses = [QUARTER, *map(Method, ("tcpt", "moments_only", "mbls", "zs_norm", "penalty"))]
        keys = photo().shared([PLAIN, *losses], coop)
        return tables.pair_table(photo().subset(keys), [(loss, PLAIN) for loss in losses], metrics, coop)
    if title == "calibrators":
        named = [(Method(loss, name), Method(loss)) for loss in ("ce", "tcpt") for name in ("temperature", "dac")]
        return tables.pair_table(photo(), [*named, (TCPT, Method("ce", "temperature"))], ("ece", "nll"), coop)
    if title == "anchored":
        anchored_ce, anchored_tcpt = Method("ce, anchored"), Method("tcpt, anchored")
        pairs = [(anchored_ce, PLAIN), (anchored_tcpt, TCPT), (anchored_tcpt, anchored_ce)]
        return tables.pair_table(photo(), pairs, metrics, coop)
    if title == "scales":
        return _scales()
    if title == "parts":
        return _parts(PairedResults((row for group in SMALL for row in rows(group, PHOTO)), coop))
    if title == "vit":
        first, second = Method("tcpt, pocket-vit"), Method("ce, pocket-vit")
        return tables.tuner_table(photo(), first, second, metrics)
    if title == "shifted":
        return tables.tuner_table(PairedResults(rows("shifted", PHOTO), TUNERS), TCPT, PLAIN, metrics)
    if title == "towers":
        pairs = [(TCPT, PLAIN), *((Method(f"tcpt, {name}"), Method(f"ce, {name}")) for name in TOWERS)]
        keys = photo().shared([each for pair in pairs for each in pair], coop)
        return tables.pair_table(photo().subset(keys), pairs, ("accuracy", "ece"), coop)
    return tables.tuner_table(photo(), TCPT, PLAIN, metrics)


def _ratios(found: PairedResults, methods: Iterable[Method]) -> str:
    """Mean ECE of CoOp and what a method makes of it, on the datasets that both were run on."""
    rows = []
    for method in methods:
        keys = found.shared([PLAIN, method], ["coop"])
        for split in SPLITS:
            plain, other = (found.level(each, split, "ece", keys) for each in (PLAIN, method))
            rows.append([str(method), split, f"{plain:.1f}", f"{other:.1f}", f"{other / plain:.2f}"])
    return tables.markdown(["", "half", "ECE, ce", "ECE", "ratio"], rows)


def _gaps(found: PairedResults) -> str:
    """How many points TCPT saves where zero-shot is nearly calibrated and where it is not."""
    cases = [
        (abs(case[UNTUNED][0]), case[TCPT][1] - case[PLAIN][1], case[PLAIN][1], case[TCPT][1])
        for (tuner, _, _), case in found.cases([UNTUNED, PLAIN, TCPT]).items()
        if tuner == "coop"
    ]
    rows = []
    for low, high in ((0, 4), (4, 100)):
        inside = [case for case in cases if low <= case[0] < high]
        fell = sum(change < 0 for _, change, _, _ in inside)
        means = [f"{mean(case[place] for case in inside):.1f}" for place in (2, 3)]
        label = f"below {high}" if high < 100 else f"{low} and more"
        rows.append([label, str(len(inside)), *means, f"{fell} of {len(inside)}"])
    return tables.markdown(["zero-shot's gap, either way", "cases", "ECE, ce", "ECE, tcpt", "ECE fell"], rows)


def _parts(found: PairedResults) -> str:
    """CoOp with the parts of TCPT and with other weights: means over the datasets that all of them were run on."""
    losses = dict.fromkeys(method for method, _, _ in found.values if method != UNTUNED and method.calibrator == "none")
    keys = found.shared([*losses], found.tuners)
    rows = [
        [str(method), *(f"{found.level(method, split, metric, keys):.1f}" for metric, split in _COLUMNS)]
        for method in losses
    ]
    return tables.markdown(["loss", *(f"{metric}, {split}" for metric, split in _COLUMNS)], rows)


_COLUMNS = tuple((metric, split) for metric in ("accuracy", "ece") for split in SPLITS)


def _scales() -> str:
    """Zero-shot's mean ECE at the model's own scale, at the best one, and with one for every dataset or half."""
    cells = {tuple(name.split()): errors for name, errors in json.loads(SCALES.read_text("utf-8")).items()}
    scales = cells.pop(("scales",))
    best = min(range(len(scales)), key=lambda i: mean(errors[i] for errors in cells.values()))

    def chosen(parts: Iterable[str]) -> dict[str, int]:
        """The best scale of every dataset over these halves."""
        return {
            name: min(range(len(scales)), key=lambda i: mean(cells[name, part][i] for part in parts))
            for name, _ in cells
        }

    ways = {
        "its own, chosen on what pretraining left out": {part: dict.fromkeys(chosen(SPLITS), 0) for part in SPLITS},
        "the best for these datasets": {part: dict.fromkeys(chosen(SPLITS), best) for part in SPLITS},
        "the best for each dataset": {part: chosen(SPLITS) for part in SPLITS},
        "the best for each half": {part: chosen([part]) for part in SPLITS},
    }
    rows = []
    for label, scale_of in ways.items():
        used = [scales[i] for by_name in scale_of.values() for i in by_name.values()]
        errors = {(name, part): cells[name, part][scale_of[part][name]] for name, part in cells}
        means = [f"{mean(error for (_, half), error in errors.items() if half == part):.1f}" for part in SPLITS]
        worst = max(errors, key=lambda cell: errors[cell])
        spread = f"{min(used):.1f}" + (f" to {max(used):.1f}" if max(used) > min(used) else "")
        rows.append([label, spread, *means, f"{errors[worst]:.1f}, {worst[0]} {worst[1]}"])
    return tables.markdown(["scale", "", "mean ECE, base", "novel", "largest"], rows)


def write() -> None:
    for page in PAGES:
        page.write_text(tables.fill_page(page.read_text("utf-8"), page_table), "utf-8")
    groups, colours = {title: results(name) for title, name in TITLES.items()}, "points, against zero-shot; "
    save_figure(figures.gap_figure(groups), DOCS / "pocket-gaps.png")
    save_figure(figures.effect_figure(groups), DOCS / "pocket-effects.png")
    halves = figures.halves_figure(results("tuned_all"), (*NEAR, *FAR), len(NEAR), f"{colours}settings for this model")
    save_figure(halves, DOCS / "pocket-halves.png")


def show(name: str, tuner: str) -> None:
    print(tables.dataset_table(results(name), [UNTUNED, PLAIN, *map(Method, LOSSES)], tuner))


if __name__ == "__main__":
    {"write": write, "show": show}[sys.argv[1]](*sys.argv[2:])

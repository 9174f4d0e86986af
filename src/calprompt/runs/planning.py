"""A run before it starts: what it is, and whether it is there already. Needs no weights in memory.

The fingerprint covers all that the result depends on: the settings, the weights, the images, and a number that is
raised whenever the same settings give other results; not the location of files, nor the version of the package.

    config ── dataset, shots, parts ──┐
           ── identity of backbone ───┼── fingerprint ── id ── folder under `out`
           ── imports, loss, template ┘

A run folder under `out` is the one that is asked for if its record has the same settings, and if the weights, the
images and the imported files are still what they were. Anything else is left to `plan`, which knows for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any

from calprompt.clip.identity import BackboneIdentity, identify_backbone
from calprompt.data.checks import drop_images, find_unreadable, image_digests, warn_left_out
from calprompt.data.dataset import Dataset, Split
from calprompt.data.load import locate
from calprompt.data.splits import Part, all_classes, base_novel, few_shot
from calprompt.errors import CalpromptError, DamagedFileError, DataError, SettingError
from calprompt.features import EXTRACTION
from calprompt.files import json_digest
from calprompt.progress import Progress, silent
from calprompt.registry import extension_digest, load_extension
from calprompt.runs.config import LATER_SETTINGS, RunConfig, settings_record
from calprompt.runs.folder import RECORD, Run, is_finished, load_run, read_record
from calprompt.runs.resources import Resources
from calprompt.text import slug

RESULTS = 1  # raise it whenever the same settings, weights and images give other results: earlier runs are not reused
FIRST_VERSION = "0.1.0"  # whose runs have their version in the fingerprint, and the results of RESULTS = 1
TEMPLATE = "a photo of a {}."  # where neither the run nor the dataset has one
PLACES = ("backbone", "backbone_config", "data", "root", "classes", "base")


@dataclass(frozen=True)
class RunPlan:
    """What a run is, before anything is computed.

    Attributes:
        config: Its settings.
        backbone: What its weights are.
        base: What is trained on: all classes, if the protocol is few-shot.
        novel: The other classes; `None` if the protocol is few-shot.
        template: The sentence of the untuned model.
        dataset: The dataset's name.
        data_digest: sha256 of the names, labels and contents of all images.
        skipped: Images left out, and why.
    """

    config: RunConfig
    backbone: BackboneIdentity
    base: Part
    novel: Part | None
    template: str
    dataset: str
    data_digest: str
    skipped: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything the result depends on: the contents of files, not their location."""
        return self._fingerprint({"results": RESULTS})

    @cached_property
    def earlier_fingerprints(self) -> tuple[str, ...]:
        """Those that earlier versions gave to a run with the same result."""
        return (self._fingerprint({"version": FIRST_VERSION}),) if RESULTS == 1 else ()

    def _fingerprint(self, edition: Mapping[str, Any]) -> str:
        from calprompt.losses import Objective

        settings = self.config.record()
        for place in (*PLACES, "exif", "skip_bad"):  # of the last two, the images tell
            del settings[place]
        for name, usual in LATER_SETTINGS.items():  # so that runs from before this setting keep their fingerprint
            if settings[name] == usual:
                del settings[name]
        settings["imports"] = import_digests(self.config)
        settings["loss"] = Objective.parse(self.config.loss).record()
        settings["template"] = self.template
        if "float16" in (self.config.dtype, self.config.training.autocast):
            edition = {**edition, "loss_scale": 1}
        payload = {
            "config": settings,
            "backbone": self.backbone.fingerprint,
            "preprocessing": {**self.backbone.preprocessing.to_dict(), "crop": self.config.crop},
            "data": self.data_digest,
            "extraction": EXTRACTION,
            **edition,
        }
        return json_digest(payload)

    @property
    def id(self) -> str:
        """Readable, and with enough of the fingerprint to be the run's own."""
        return self._id(self.fingerprint)

    def _id(self, fingerprint: str) -> str:
        config = self.config
        return f"{readable_id(config.tuner, self.dataset, config.shots, config.seed)}-{fingerprint[:12]}"

    def locate(self, out: str | Path) -> Path:
        """The run's folder under `out`: the one that is there, by whatever version, or else where it will be."""
        out = Path(out).expanduser()
        places = [out / self._id(each) for each in (self.fingerprint, *self.earlier_fingerprints)]
        return next((place for place in places if (place / RECORD).is_file()), places[0])

    @property
    def parts(self) -> dict[str, Part]:
        """Base and novel, or all."""
        return {"all": self.base} if self.novel is None else {"base": self.base, "novel": self.novel}

    @property
    def evaluated(self) -> dict[str, tuple[Part, Split]]:
        """The splits that metrics are reported of."""
        splits = {name: (part, part.test) for name, part in self.parts.items()}
        return {**splits, "val": (self.base, self.base.val)} if len(self.base.val) else splits

    @property
    def views(self) -> int:
        """Random views of every training image; no more than epochs use."""
        epochs = self.config.training.epochs
        return epochs if self.config.views is None else min(self.config.views, epochs)


def plan(config: RunConfig, *, resources: Resources | None = None, progress: Progress = silent) -> RunPlan:
    """Read the data and identify the backbone, without its weights in memory if it was loaded before.

    Args:
        config: The settings of the run.
        resources: What is loaded already; see `Resources`.
        progress: Callback for progress.

    Returns:
        What the run is: its fingerprint, its id, its classes and images.

    Raises:
        CalpromptError: for whatever is wrong with the data, or does not fit together.
    """
    from calprompt import tuners

    if not isinstance(config, RunConfig):
        raise SettingError(f"must be a RunConfig, got {type(config).__name__}", parameter="config")
    resources = resources or Resources()
    dataset = resources.dataset(
        config.data, root=config.root, classes=config.classes, base=config.base, upright=config.exif
    )
    warn_left_out(dataset, locate(config.data, config.root))
    kind = tuners.get(config.tuner)
    check_pixels(config.tuner, dataset)
    if not len(dataset.train) and kind.learns:
        raise DataError(f"{dataset.name} has no training split, which tuner {config.tuner!r} needs")
    if not len(dataset.train) and config.anchor:
        raise DataError(f"{dataset.name} has no training images to fit the anchor on")
    base, novel, skipped = draw_parts(dataset, config.record(), progress)
    identity = resources.identity(config.backbone, config=config.backbone_config, dtype=config.dtype)
    for split in used_splits(base, novel).values():
        split.images.check(identity)
    return RunPlan(
        config,
        identity,
        base,
        novel,
        template=config.template or dataset.template_of(kind.template_table) or TEMPLATE,
        dataset=dataset.name,
        data_digest=data_digest(base, novel, skipped, progress),
        skipped=skipped,
    )


def readable_id(tuner: str, dataset: str, shots: int | None, seed: int) -> str:
    """The part of a run's id that people read.

    >>> readable_id("coop", "my photos", 16, 1)
    'coop-my_photos-16shot-seed1'
    """
    return f"{tuner}-{slug(dataset)}-{'all' if shots is None else f'{shots}shot'}-seed{seed}"


def is_up_to_date(
    record: Mapping[str, Any], identify: Callable[..., BackboneIdentity | None] = identify_backbone
) -> bool | None:
    """Whether a run's weights and imported files are what they were; None if its backbone has to be loaded to know."""
    config = record["config"]
    try:
        imports = sorted(map(extension_digest, config["imports"]))
    except CalpromptError:
        return False
    first = "results" not in record and record.get("versions", {}).get("calprompt") == FIRST_VERSION
    if record.get("results", 1 if first else None) != RESULTS or imports != record.get("imports", []):
        return False
    identity = identify(config["backbone"], config=config.get("backbone_config"), dtype=config["dtype"])
    if identity is None:
        return None
    if identity.fingerprint != record["backbone"]["fingerprint"]:
        return False
    then = record["backbone"].get("preprocessing")
    return None if then is None else then == {**identity.preprocessing.to_dict(), "crop": config["crop"]}


def data_digest(base: Part, novel: Part | None, skipped: Mapping[str, str], progress: Progress = silent) -> str:
    """sha256 of class names, and of the name, label and content of every image that a run reads."""
    payload: dict[str, Any] = {
        "class_names": [part.class_names for part in (base, novel) if part is not None],
        "splits": image_digests(used_splits(base, novel), progress),
    }
    if skipped:
        payload["skipped"] = sorted(skipped)
    return json_digest(payload)


def import_digests(config: RunConfig) -> list[str]:
    """sha256 of every file that the run imports, sorted."""
    return sorted(load_extension(path) for path in config.imports)


def check_pixels(tuner: str, dataset: Dataset) -> None:
    from calprompt import tuners

    if tuners.get(tuner).needs_pixels and not dataset.test.images.has_pixels:
        raise DataError(f"tuner {tuner!r} learns from pixels, and {dataset.name} holds features only")


def draw_parts(
    dataset: Dataset, record: Mapping[str, Any], progress: Progress = silent
) -> tuple[Part, Part | None, dict[str, str]]:
    """Base, novel and the images left out, by settings; an unreadable image is replaced by drawing without it."""
    skipped: dict[str, str] = {}
    known_good: set[str] = set()
    seed, shots, val_shots = record["training"]["seed"], record["shots"], record["val_shots"]
    while True:
        drawn = few_shot(dataset, shots, seed, val_shots, record["validation"])
        base, novel = (all_classes(drawn), None) if record["protocol"] == "few-shot" else base_novel(drawn)
        if not record["skip_bad"]:
            return base, novel, skipped  # unreadable ones are reported when they are digested
        unreadable = find_unreadable(used_splits(base, novel).values(), known_good=known_good, progress=progress)
        if not unreadable:
            return base, novel, skipped
        skipped |= unreadable
        dataset = drop_images(dataset, skipped)


def used_splits(base: Part, novel: Part | None) -> dict[str, Split]:
    splits = {"train": base.train, "val": base.val, "base": base.test}
    return splits if novel is None else {**splits, "novel": novel.test}


TENSOR_SUFFIX = ".safetensors"  # of data that need torch to be read


def find_finished(settings: Mapping[str, Any], out: str | Path, *, resources: Resources | None = None) -> Run | None:
    """The finished run of these settings, if it is there."""
    resources = resources or Resources()
    data = str(settings["data"])
    if data.endswith(TENSOR_SUFFIX):
        return None
    dataset = resources.dataset(
        data,
        root=settings.get("root"),
        classes=settings.get("classes"),
        base=settings.get("base"),
        upright=bool(settings.get("exif", False)),
    )
    wanted = settings_record(settings)
    if wanted is None:
        return None
    name = readable_id(wanted["tuner"], dataset.name, wanted["shots"], wanted["training"]["seed"])
    templates = dataset.templates.values() if dataset.templates else (dataset.template or TEMPLATE,)
    for place in sorted(Path(out).expanduser().glob(f"{escape(name)}-*/{RECORD}")):
        try:
            record = read_record(place.parent)
        except CalpromptError:
            continue  # most likely another run; `run` looks at the folder of this one
        same = record["status"] == "finished" and {**LATER_SETTINGS, **record["config"]} == wanted
        if not same or (wanted["template"] is None and record["template"] not in templates):
            continue
        if not is_up_to_date(record):
            continue
        base, novel, skipped = draw_parts(dataset, wanted)
        if data_digest(base, novel, skipped) != record["data"]["digest"]:
            continue
        try:
            return replace(load_run(place.parent), reused=True) if is_finished(place.parent) else None
        except DamagedFileError:
            return None  # it is computed again
    return None

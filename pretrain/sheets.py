"""The datasets' drawings, sketches and photographs, on one sheet per dataset, with what each of them is for."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from calprompt.pocket import COLUMNS, Sheet
from calprompt.pocket.render import Scene
from pretrain import icons
from pretrain.concepts import Concept, read_emoji
from pretrain.pool import Pool, as_in_pool
from pretrain.selection import (
    CHOICES,
    CIFAR10,
    CLOTHES,
    DIGITS,
    FASHION,
    SHIFTED,
    SHIFTS,
    SKETCHES,
    Choice,
)
from pretrain.studios import BLACK, SEEN, UNSEEN, cifar10, digits, drawings, fashion, sketches

PAPER = Scene(size=(100, 100), turn=0, shift=0, tint=0, clutter=0, paper=100, blur=0, noise=0)
ALIKE = 0.9  # of the ink of two icons together
Named = tuple[str, np.ndarray]  # where a drawing comes from, and the drawing
TITLES = {
    "emoji": "drawings of unseen studios",
    "sketch": "Quick, Draw! sketches",
    "cifar10": "CIFAR-10",
    "fashion": "Fashion-MNIST",
    "icons": "icons of 28 sets",
    "digits": "MNIST",
}


class Source:
    """Everything the datasets may show: by class, the drawings with their origin."""

    def __init__(self, packages: dict[str, Path], seen: set[bytes]) -> None:
        self.packages, self.emoji, self.seen = packages, read_emoji(packages), seen
        self.colour, self.black = self._drawn(UNSEEN), self._drawn(BLACK)
        self.sketched = {
            name: [(f"quickdraw/{name}/{i}", picture) for i, picture in enumerate(pictures)][SKETCHES:]
            for name, pictures in sketches(packages["quickdraw"])
        }

    def _drawn(self, studios: tuple[str, ...]) -> dict[str, list[Named]]:
        result: dict[str, list[Named]] = defaultdict(list)
        for studio in studios:
            for code, name, picture in drawings(studio, self.packages, self.emoji):
                result[code].append((f"{studio}/{name}", picture))
        return result

    def concepts(self, choice: Choice) -> list[Concept]:
        """The emoji of a dataset, by name: those of its kinds with three drawings or more."""
        members = [
            concept
            for code, concept in self.emoji.by_code.items()
            if concept.kind in choice.members and len(self.colour[code]) >= 3 and concept.label not in choice.without
        ]
        if choice.most is not None:
            members = sorted(members, key=lambda concept: _hash(concept.code))[: choice.most]
        return sorted(members, key=lambda concept: _name(concept))


def make(packages: dict[str, Path], pool: Pool, folder: Path, echo=print) -> set[bytes]:
    """Write every sheet and its record; returns digests of what pretraining sees, see `seen_digests`."""
    folder.mkdir(parents=True, exist_ok=True)
    seen, trained = seen_digests(packages, pool), {picture_digest(picture) for picture in pool.pictures}
    source, learned = Source(packages, seen), set()
    for choice in CHOICES:
        record, pictures = _dataset(choice, source)
        refuse_seen(record, pictures, trained)
        learned |= {origin for _, split, origin in record["drawings"] if split != "test"}
        _write(folder, choice.name, record, pictures, echo=echo)
    animals = next(choice for choice in CHOICES if choice.name == SHIFTED)
    _shifts(animals, source, learned, trained, folder, echo)
    return seen


def _dataset(choice: Choice, source: Source) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A dataset's record, and its drawings in the order of the sheet."""
    counts = {"train": choice.train, "val": choice.val, "test": choice.test}
    if choice.source == "emoji":
        concepts = source.concepts(choice)
        names = [_name(concept) for concept in concepts]
        parts = [_by_drawing(_shuffled(source.colour[concept.code])) for concept in concepts]
        scene: Scene | None = Scene()
    elif choice.source == "icons":
        drawn, names = icons.by_class(source.packages, choice.members), list(choice.members)
        parts = [_by_drawing(_unlike(_shuffled(drawn[name]), source.seen), train=6, val=2) for name in names]
        scene = Scene(paper=50)
    else:
        by_class = source.sketched if choice.source == "sketch" else _photographs(choice.source, source.packages)
        names = sorted(choice.members or by_class)
        parts = [_by_count(_different(_shuffled(by_class[name])), counts) for name in names]
        scene = PAPER if choice.source == "sketch" else None
    rows = [
        (label, split, *named) for label, part in enumerate(parts) for split, some in part.items() for named in some
    ]
    record = {
        "title": choice.name.replace("_", " "),
        "source": TITLES[choice.source],
        "template": choice.template,
        "scene": None if scene is None else asdict(scene),
        "pictures": counts,
        "classes": names,
        "drawings": [[label, split, origin] for label, split, origin, _ in rows],
    }
    return record, [picture for *_, picture in rows]


def _shifts(choice: Choice, source: Source, learned: set[str], trained: set[bytes], folder: Path, echo) -> None:
    """The four shifts: pictures of another kind of the same things, to test on only.

    Args:
        choice: The dataset that is shifted.
        source: All drawings.
        learned: Origins of the drawings that any dataset trains or validates with; none of them is shown, in colour or
            in black.
        trained: Digests of the pictures of the pool; none of them is shown either.
        folder: Where the sheets are written.
        echo: Called with a line per sheet.
    """
    concepts = source.concepts(choice)
    kept, _ = _dataset(choice, source)
    for shift in SHIFTS:
        scene = asdict(shift.scene if shift.scene is not None else PAPER)
        record = {**kept, "title": shift.title, "source": shift.source, "scene": scene}
        record |= {"pictures": {"test": shift.test}, "of": choice.name}
        if shift.drawings == "same":
            record |= {"sheet": choice.name, "side": 48}
            _write(folder, shift.name, record, None, echo=echo)
            continue
        if shift.drawings == "black":
            drawn = source.black
        else:
            drawn = {code: source.sketched[name] for code, name in sketch_names(concepts, source.sketched).items()}
        rows: list[tuple[int, str, str, np.ndarray]] = []
        names = []
        for concept in concepts:
            free = [named for named in drawn.get(concept.code, ()) if named[0].replace("_black", "") not in learned]
            if free:
                rows += [(len(names), "test", *named) for named in _shuffled(free)[: shift.test]]
                names.append(_name(concept))
        record |= {"classes": names, "drawings": [[label, split, origin] for label, split, origin, _ in rows]}
        pictures = [picture for *_, picture in rows]
        refuse_seen(record, pictures, trained)
        _write(folder, shift.name, record, pictures, echo=echo)


def refuse_seen(record: dict[str, Any], pictures: list[np.ndarray], trained: set[bytes]) -> None:
    """Stop if one of a dataset's pictures is, to the bit and as pretraining would hold it, one that was trained on."""
    for (_, _, origin), picture in zip(record["drawings"], pictures, strict=True):
        if picture_digest(as_in_pool(picture, strokes=record["scene"] is not None)) in trained:
            raise SystemExit(f"{origin} of the dataset {record['title']!r} is in the pool that pretraining sees")


def sketch_names(concepts: list[Concept], sketched: Collection[str]) -> dict[str, str]:
    """The class of sketches of each concept, by its code: the one of its name, else of another name that nobody has."""
    names: dict[str, str] = {}
    for concept in sorted(concepts, key=lambda concept: _name(concept) not in sketched):
        free = [name for name in (_name(concept), *concept.names) if name in sketched and name not in names.values()]
        if free:
            names[concept.code] = free[0]
    return names


def _photographs(which: str, packages: dict[str, Path]) -> dict[str, list[Named]]:
    """Those that pretraining may not see, or digits, by class."""
    if which == "cifar10":
        photos, labels = cifar10(packages["cifar10"], "test")
        return {
            name: [(f"cifar10/test/{row}", photos[row]) for row in np.flatnonzero(labels == label)]
            for label, name in enumerate(CIFAR10)
        }
    if which == "digits":
        written = zip(DIGITS, digits(packages["digits"]), strict=True)
        return {name: [(f"mnist/{name}/{row}", ink) for row, ink in enumerate(inks)] for name, inks in written}
    clothes = dict(zip(FASHION, fashion(packages["fashion"]), strict=True))
    seen = {picture_digest(_coarse(picture)) for pictures in clothes.values() for picture in pictures[:CLOTHES]}
    return {
        name: [
            (f"fashion/{name}/{row}", pictures[row])
            for row in range(len(pictures) // 2, len(pictures))
            if picture_digest(_coarse(pictures[row])) not in seen
        ]
        for name, pictures in clothes.items()
    }


def _unlike(named_drawings: list[Named], seen: Collection[bytes]) -> list[Named]:
    """Icons that were not seen, and the first of those that look alike: sets copy each other."""
    kept: list[Named] = []
    for origin, icon in _different(named_drawings):
        ink = icon[..., 3].astype(np.int64)
        overlaps = (np.minimum(ink, other[..., 3]).sum() / np.maximum(ink, other[..., 3]).sum() for _, other in kept)
        if picture_digest(_coarse(icon)) not in seen and all(overlap <= ALIKE for overlap in overlaps):
            kept.append((origin, icon))
    return kept


def _different(named_drawings: list[Named]) -> list[Named]:
    """Without repetitions: some photographs are in their set twice, or come out alike when they are made coarse."""
    kept: dict[bytes, Named] = {}
    for named in named_drawings:
        photo = named[1].shape[2:] == (3,)
        kept.setdefault(picture_digest(named[1] if photo else _coarse(named[1])), named)
    return list(kept.values())


def _by_drawing(named_drawings: list[Named], train: int | None = None, val: int = 1) -> dict[str, list[Named]]:
    """Drawings to train, validate and test: 1, 1, 1 of three; 1, 1, 2 of four; 2, 1 and the rest of more."""
    train = train or (1 if len(named_drawings) < 5 else 2)
    return {
        "train": named_drawings[:train],
        "val": named_drawings[train : train + val],
        "test": named_drawings[train + val :],
    }


def _by_count(named_drawings: list[Named], counts: dict[str, int]) -> dict[str, list[Named]]:
    parts, start = {}, 0
    for split, count in counts.items():
        parts[split] = named_drawings[start : start + count]
        assert len(parts[split]) == count, (named_drawings[0][0], len(named_drawings), counts)
        start += count
    return parts


def _pixel_digests(sheet: Sheet) -> dict[str, str]:
    """The sha256 of all labels and pixels of each split."""
    digests = {}
    for split in sheet.record["pictures"]:
        digest = hashlib.sha256()
        for label, _, pixels in sheet.pictures(split):
            digest.update(label.to_bytes(2, "big") + pixels.tobytes())
        digests[split] = digest.hexdigest()
    return digests


def _write(folder: Path, name: str, record: dict[str, object], pictures: list[np.ndarray] | None, *, echo) -> None:
    if pictures is not None:
        side, lossless = pictures[0].shape[0], "CIFAR" not in str(record["source"])
        rows = -(-len(pictures) // COLUMNS)
        sheet = np.zeros((rows * side, COLUMNS * side, *pictures[0].shape[2:]), dtype=np.uint8)
        for i, picture in enumerate(pictures):
            top, left = i // COLUMNS * side, i % COLUMNS * side
            sheet[top : top + side, left : left + side] = picture
        if lossless:
            sheet = _coarse(sheet)
        options = {"lossless": True, "quality": 100, "method": 6} if lossless else {"quality": 75, "method": 6}
        partial = folder / f"{name}.partial"
        Image.fromarray(sheet).save(partial, "WEBP", **options)
        partial.replace(folder / f"{name}.webp")
        record = {**record, "side": side}
    record = {**record, "sha256": _pixel_digests(Sheet(name, record, folder))}
    partial = folder / f"{name}.partial"
    partial.write_text(_json(record), "utf-8")
    partial.replace(folder / f"{name}.json")
    size = sum(file.stat().st_size for file in folder.glob(f"{name}.*"))
    echo(f"{name}: {len(record['classes'])} classes, {len(record['drawings'])} drawings, {size / 1e6:.2f} MB")


def _coarse(sheet: np.ndarray) -> np.ndarray:
    """Eight greys, or colours of 5 bits and opacity of 3: less than a render changes, and half the size."""
    if sheet.ndim == 2:
        return ((sheet >> 5).astype(np.uint16) * 255 // 7).astype(np.uint8)
    coarse = np.concatenate([(sheet[..., :3] >> 3) * 255.0 // 31, (sheet[..., 3:] >> 5) * 255.0 // 7], axis=2)
    return coarse.astype(np.uint8)


def _json(record: dict[str, object]) -> str:
    """A line a field: small, and differences can be read."""
    fields = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in record.items()]
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _shuffled(named_drawings: list[Named]) -> list[Named]:
    return sorted(named_drawings, key=lambda named: _hash(named[0]))


def _name(concept: Concept) -> str:
    return concept.label.removeprefix("flag ").replace("\u2019", "'")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def seen_digests(packages: dict[str, Path], pool: Pool) -> set[bytes]:
    """Of every picture seen in pretraining but photos, as coarse as those on the sheets."""
    drawn = [_coarse(picture) for picture in pool.pictures[np.isin(pool.source, (*SEEN, "gameicons"))]]
    sketched = [_coarse(picture) for _, pictures in sketches(packages["quickdraw"]) for picture in pictures[:SKETCHES]]
    worn = [_coarse(picture) for pictures in fashion(packages["fashion"]) for picture in pictures[:CLOTHES]]
    return {picture_digest(picture) for picture in (*drawn, *sketched, *worn)}


def picture_digest(picture: np.ndarray) -> bytes:
    """Eight bytes from what is visible: transparent pixels have no colour."""
    if picture.ndim == 3 and picture.shape[2] == 4:
        picture = np.where(picture[..., 3:] > 0, picture, 0)
    return hashlib.sha256(np.ascontiguousarray(picture).tobytes()).digest()[:8]

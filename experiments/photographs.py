"""Photographs that nobody here prepared, as folders that a new user could have: see docs/pocket-photo.md.

    apt-get download gcompris-qt-data
    dpkg-deb -x gcompris-qt-data_3.1-2_all.deb gcompris
    python experiments/photographs.py gcompris/usr/share/gcompris-qt/rcc .

GCompris, a program for children, keeps photographs by many people in Qt resource files. `photos` gets every second one
of a class, `photos_test` the others, and `strangers` pictures of none of the classes.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

FILES = ("categorization", "explore_farm_animals", "explore_world_animals", "explore_world_music")
CLASSES = {  # by what a path begins with; of several, the first
    "categorization/resource/images/fishes/": "fish",
    "categorization/resource/images/monuments/": "monument",
    "categorization/resource/images/renewable/windmill": "windmill",
    "categorization/resource/images/renewable/dam": "dam",
    "categorization/resource/images/renewable/solar[4-8]": "solar panel",  # the first three are cookers
    "categorization/resource/images/tools/hammer": "hammer",
    "categorization/resource/images/tools/measuringTape": "measuring tape",
    "categorization/resource/images/tools/plier": "pliers",
    "categorization/resource/images/tools/scissors": "scissors",
    "categorization/resource/images/tools/screwDriver": "screwdriver",
    "explore_(farm|world)_animals/resource/animals/": "animal",
}
STRANGERS = "explore_world_music/resource/music/|categorization/resource/images/others/"


def resources(path: Path) -> Iterator[tuple[str, bytes]]:
    """Path and content of everything in a Qt resource file."""
    content = path.read_bytes()
    version, tree, data, names = struct.unpack(">4I", content[4:20])
    size = 14 if version < 2 else 22  # of an entry of the tree

    def walk(entry: int, folder: str) -> Iterator[tuple[str, bytes]]:
        at = tree + entry * size
        name, flags = struct.unpack(">IH", content[at : at + 6])
        (length,) = struct.unpack(">H", content[names + name : names + name + 2])
        text = content[names + name + 6 : names + name + 6 + 2 * length].decode("utf-16-be")
        if flags & 2:  # a folder
            count, first = struct.unpack(">II", content[at + 6 : at + 14])
            for child in range(first, first + count):
                yield from walk(child, f"{folder}{text}/" if entry else "")
            return
        start = data + struct.unpack(">I", content[at + 10 : at + 14])[0]
        (length,) = struct.unpack(">I", content[start : start + 4])
        packed = content[start + 4 : start + 4 + length]
        yield folder + text, zlib.decompress(packed[4:]) if flags & 1 else packed

    return walk(0, "")


def make(source: Path, home: Path) -> None:
    found: dict[str, list[tuple[str, bytes]]] = {}
    for file in FILES:
        for path, content in sorted(resources(source / f"{file}.rcc")):
            place = path.removeprefix("gcompris/src/activities/")
            labels = [label for start, label in CLASSES.items() if re.match(start, place)]
            label = labels[0] if labels else "strangers" if re.match(STRANGERS, place) else ""
            if label and path.endswith(".webp"):
                found.setdefault(label, []).append((path, content))
    for label, pictures in sorted(found.items()):
        for number, (path, content) in enumerate(pictures):
            folder = home / ("strangers" if label == "strangers" else f"photos{'_test' * (number % 2)}/{label}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / Path(path).name).write_bytes(content)
        print(f"{label}: {len(pictures)}")


if __name__ == "__main__":
    make(*map(Path, sys.argv[1:]))

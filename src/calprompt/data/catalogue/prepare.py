"""Files that can be derived in a dataset's folder; each function makes what is not there and returns lines about it.

Frames and patches are made in `ucf101`, `pannuke` and `digestpath`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from calprompt.data.catalogue.imagenet import CLASSNAMES, ImageNetFolders
from calprompt.data.catalogue.layouts import SplitFile
from calprompt.data.folders import subfolders
from calprompt.data.listing import SPLITS, read_lines
from calprompt.data.split_files import write_split_file
from calprompt.errors import DataError
from calprompt.files import write_bytes

if TYPE_CHECKING:
    from calprompt.data.catalogue.entry import Entry
    from calprompt.progress import Progress


def own_split(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """split_own_X.json from the dataset's annotations, if it has no fixed split."""
    layout = entry.layout
    assert isinstance(layout, SplitFile)
    for name in (layout.file, layout.own_file):
        if (folder / name).is_file():
            return [f"{folder / name} is there already"]
    images = layout.image_folder(folder)
    if images is None:
        raise DataError(f"{folder / layout.images[0]}/ is not there; unpack the images first")
    write_split_file(folder / layout.own_file, layout.raw.split(folder, images))
    return [f"made {folder / layout.own_file}: a split of your own, not comparable with published numbers"]


def imagenet_names(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """classnames.txt: CLIP's names in the order of the sorted WordNet numbers."""
    layout = entry.layout
    assert isinstance(layout, ImageNetFolders)
    if (folder / CLASSNAMES).is_file():
        return [f"{folder / CLASSNAMES} is there already"]
    train = next((folder / name for name in layout.train if (folder / name).is_dir()), None)
    wnids = [] if train is None else [path.name for path in subfolders(train)]
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    if len(wnids) != len(IMAGENET_CLASSNAMES):
        raise DataError(
            f"{train or folder / layout.train[0]} has {len(wnids)} folders, and there are names for "
            f"{len(IMAGENET_CLASSNAMES)} classes; unpack the training images first"
        )
    lines = "".join(f"{wnid} {name}\n" for wnid, name in zip(wnids, IMAGENET_CLASSNAMES, strict=True))
    write_bytes(folder / CLASSNAMES, lines.encode())
    return [f"made {folder / CLASSNAMES}"]


def variants_list(entry: Entry, folder: Path, progress: Progress) -> list[str]:
    """variants.txt: the class names in the three lists, sorted by their bytes, as the official one is."""
    path = folder / "variants.txt"
    if path.is_file():
        return [f"{path} is there already"]
    names = {line.partition(" ")[2] for kind in SPLITS for line in read_lines(folder / f"images_variant_{kind}.txt")}
    write_bytes(path, "".join(f"{name}\n" for name in sorted(names)).encode())
    return [f"made {path}: {len(names)} variants"]

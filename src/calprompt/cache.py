"""Where calprompt keeps what it can make again: image features, interrupted fits, pictures, digests of backbones.

One environment variable, CALPROMPT_CACHE, names the folder; without it, ~/.cache/calprompt is used.

    <cache>/features/     the feature store
            pocket/       pictures of the embedded datasets
            backbones/    fingerprints of weights files that were loaded before
            fits/         fits of a classifier that were interrupted, to be continued
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = "CALPROMPT_CACHE"
DEFAULT = "~/.cache/calprompt"
FITS = "fits"
KINDS = {
    FITS: "interrupted fits, which the same command continues, and pictures of zip files that were added",
    "pocket": "pictures of the pocket's datasets",
    "backbones": "fingerprints of weights files",
}  # other than features


def cache_root() -> Path:
    """The folder of everything that is cached, whether it exists or not."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT).expanduser()


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached data, whether it exists or not."""
    return cache_root() / kind


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files a folder has, with all folders in it, and how many bytes they take; 0 if there is no folder."""
    count = size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                size += os.lstat(os.path.join(place, name)).st_size
                count += 1
    return count, size

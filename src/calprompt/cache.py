"""Where calprompt keeps what it can make again: image features, pictures of the pocket, digests of backbones.

One environment variable, CALPROMPT_CACHE, names the folder; without it, ~/.cache/calprompt is used.

    <cache>/features/     the feature store
            pocket/       pictures of the embedded datasets
            backbones/    fingerprints of weights files that were loaded before
"""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = "CALPROMPT_CACHE"
DEFAULT = "~/.cache/calprompt"


def cache_root() -> Path:
    """The folder of everything that is cached, whether it exists or not."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT).expanduser()


def cache_folder(kind: str) -> Path:
    """The folder for one kind of cached data, whether it exists or not."""
    return cache_root() / kind

"""Pocket: a small CLIP and small datasets inside the package, so that everything runs at once and offline.

MODEL              a folder in open_clip's format, loaded like any other: load_backbone("pocket")
FINGERPRINT        of that backbone, by which a damaged file is found out
names(), sheet()   the datasets and what they contain
folder(name)       a dataset's pictures on disk, made the first time they are needed
"""

from __future__ import annotations

from calprompt.pocket.datasets import FINGERPRINT, MODEL, folder, names, rows, sheet
from calprompt.pocket.sheets import Sheet

__all__ = ["FINGERPRINT", "MODEL", "Sheet", "folder", "names", "rows", "sheet"]

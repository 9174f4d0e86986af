"""The pocket: a small CLIP of our own and datasets to adapt it to, so that everything runs at once and offline.

MODEL              a folder in open_clip's form, loaded like any other: load_backbone("pocket")
names(), sheet()   what the datasets hold
folder(name)       a dataset's pictures on disk, made the first time they are wanted
"""

from __future__ import annotations

from calprompt.pocket.datasets import MODEL, folder, names, rows, sheet
from calprompt.pocket.sheets import Sheet

__all__ = ["MODEL", "Sheet", "folder", "names", "rows", "sheet"]

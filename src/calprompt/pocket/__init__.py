"""Pocket: two small CLIPs and small datasets inside the package, so that everything runs at once and offline.

MODELS             folders in open_clip's format, loaded like any other: load_backbone("pocket-photo")
FOR_PHOTOGRAPHS    the one that knows photographs
FINGERPRINTS       of these backbones, by which a damaged file is found out
names(), sheet()   the datasets and what they contain
folder(name)       a dataset's pictures on disk, made the first time they are needed
"""

from __future__ import annotations

from calprompt.pocket.sheets import FINGERPRINTS, FOR_PHOTOGRAPHS, MODELS, Sheet, folder, names, rows, sheet

__all__ = ["FINGERPRINTS", "FOR_PHOTOGRAPHS", "MODELS", "Sheet", "folder", "names", "rows", "sheet"]

"""The learning rate of each tuner on the pocket: the one with the lowest NLL on validation images of datasets kept out.

    for file in experiments/sweeps/rates-*.yaml; do calprompt sweep $file --out runs/pocket; done
    python experiments/pocket_rates.py runs/pocket

Writes experiments/pocket_rates.json. If the best rate is the first or the last of a file, add further ones to the file.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from calprompt.files import write_json
from calprompt.runs.config import read_recipe
from calprompt.runs.folder import load_run
from calprompt.sweep.expansion import record_key
from calprompt.sweep.sweep_file import read_sweep

HERE = Path(__file__).parent
RATES = HERE / "pocket_rates.json"


def best_rates(out: Path) -> dict[str, Any]:
    """The best rate of each tuner, the published one, and the mean NLL of every rate, of the runs in a folder."""
    cells = [cell for file in sorted((HERE / "sweeps").glob("rates-*.yaml")) for cell in read_sweep(file).cells]
    settings = {cell.key: cell.settings for cell in cells}
    nlls: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place in sorted(out.glob("*/run.json")):
        run = load_run(place.parent)
        own = settings.get(record_key(run.record["config"]))
        if own is not None and run.status == "finished":
            nlls[own["tuner"]][own["lr"]].append(run.metrics["val"]["nll"])
    found = {}
    for tuner, tried in nlls.items():
        means = {f"{rate:g}": mean(values) for rate, values in sorted(tried.items())}
        best = float(min(means, key=means.__getitem__))
        found[tuner] = {"rate": best, "published": read_recipe(f"{tuner}-tcpt")[1]["lr"], "val_nll": means}
    lacking = len(cells) - sum(len(values) for tried in nlls.values() for values in tried.values())
    if lacking:
        raise SystemExit(f"{out} lacks {lacking} of {len(cells)} runs; the sweeps above make them")
    return found


if __name__ == "__main__":
    write_json(RATES, best_rates(Path(sys.argv[1])))

"""How long it takes until a command answers: seconds by the clock of fresh processes, the median of five.

    python benchmarks/startup.py

The run that is asked for again is made first: CoOp on pocket_photos for one epoch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = ["train", "--backbone", "pocket", "--data", "pocket_photos", "--recipe", "coop-pocket", "--epochs", "1"]
REPEATS = 5


def seconds(words: list[str], folder: str) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CALPROMPT_CACHE"] = str(Path(folder) / "cache")
        command = ["-m", "calprompt"]
        subprocess.run([sys.executable, *command, *TRAIN, "--quiet"], cwd=folder, capture_output=True, check=True)
        for name, words in (
            ("python -c pass", ["-c", "pass"]),
            ("import calprompt", ["-c", "import calprompt"]),
            ("calprompt --help", [*command, "--help"]),
            ("calprompt list", [*command, "list"]),
            ("wrong --data", [*command, "train", "--backbone", "pocket", "--data", "nowhere"]),
            ("finished run asked again", [*command, *TRAIN, "--quiet"]),
            ("import torch", ["-c", "import torch"]),
            ("import open_clip", ["-c", "import open_clip"]),
        ):
            print(f"{name:26s} {seconds(words, folder):.2f} s", flush=True)


if __name__ == "__main__":
    main()

"""CPU seconds and memory of reports, tables and results: of run folders, and of tables of many rows.

    python benchmarks/reports.py [--runs demo/runs] [--table experiments/pocket.csv.xz]

Every command is a process of its own with one thread. A table of 10,000 rows is the beginning of the large one.
"""

from __future__ import annotations

import argparse
import lzma
import os
import resource
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path


def measure(name: str, *words: str) -> None:
    """Run a command and print what it took; memory is the most of all commands so far."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "calprompt", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:<28}{seconds:6.1f} CPU s, at most {after.ru_maxrss / 1024:,.0f} MB so far", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", help="folder of runs, such as demo/runs")
    parser.add_argument("--table", default="experiments/pocket.csv.xz", help="a large table of results (.csv.xz)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        small, page = Path(place) / "small.csv", str(Path(place) / "report.html")
        with lzma.open(args.table, "rt", encoding="utf-8") as file:
            small.write_text("".join(islice(file, 10_001)), encoding="utf-8")
        measure("report, 10,000 rows", "report", str(small), "--out", page, "--quiet")
        measure("table, all rows", "table", "main", args.table)
        measure("results, all rows", "results", args.table)
        measure("report, all rows", "report", args.table, "--out", page, "--quiet")
        if args.runs:
            measure("report, run folders", "report", args.runs, "--out", page, "--quiet")
            measure("report --check", "report", "--check", page, "--quiet")


if __name__ == "__main__":
    main()

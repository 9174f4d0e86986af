"""A sweep that is killed again and again: its table must be that of one that nobody disturbed, byte for byte.

    python benchmarks/sweep_crashes.py               30 random instants: a worker, or the whole command, gets SIGKILL
    python benchmarks/sweep_crashes.py --kills 100 --seed 5

Prints every kill and how many runs were finished then, and at the end whether anything was lost, done twice or differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from calprompt.results.collecting import results


def children(process: int) -> list[int]:
    """The workers of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            if parent == process and b"spawn_main" in (path.parent / "cmdline").read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def started(file: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "calprompt", "sweep", str(file), "--out", str(out), "--quiet", "--no-cache"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for_work(process: subprocess.Popen[bytes], out: Path, since: float) -> None:
    """Until some run has written something; processes that only import their libraries have little to lose."""
    while process.poll() is None:
        for path in out.glob("*/*"):
            try:
                if path.stat().st_mtime > since:
                    return
            except OSError:
                continue
        time.sleep(0.02)


def finished(out: Path) -> dict[str, str]:
    """Finished runs, and when each was begun for the last time."""
    records = [json.loads(path.read_text("utf-8")) for path in sorted(out.glob("*/run.json"))]
    return {record["id"]: record["started"] for record in records if record["status"] == "finished"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=2.0, help="seconds from a sign of work to a kill, at most")
    parser.add_argument("--working", type=float, default=0.8, help="share of kills that wait for a sign of work")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    content = {
        "settings": {"backbone": "pocket", "epochs": 12, "crop": 1.0, "shots": 4},
        "axes": {"data": ["pocket_photos", "pocket_digits"], "loss": ["ce", "tcpt", "mbls", "zs_norm"]},
        "seeds": list(range(1, 6)),
        "calibrators": ["temperature", "dac"],
        "workers": 2,
    }
    with tempfile.TemporaryDirectory() as place:
        file, calm, out = Path(place, "grid.yaml"), Path(place, "calm"), Path(place, "out")
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        process = started(file, calm)
        assert process.wait() == 0, process.stderr and process.stderr.read()
        expected = results(calm).to_csv(times=False)
        kills, twice, process = 0, 0, started(file, out)
        known: dict[str, str] = {}
        while kills < args.kills:
            if draw.random() < args.working:
                wait_for_work(process, out, time.time())
            time.sleep(draw.uniform(0.0, args.longest))
            if process.poll() is not None:  # it was faster: begin in a new folder
                out = Path(place, f"out{kills}")
                known, process = {}, started(file, out)
                continue
            workers = children(process.pid)
            whole = draw.random() < 0.3 or not workers
            os.kill(process.pid if whole else draw.choice(workers), signal.SIGKILL)
            kills += 1
            if whole:
                process.wait()
                process = started(file, out)
            now = finished(out)
            twice += sum(now.get(run, begun) != begun for run, begun in known.items())
            known = now
            print(f"kill {kills:3d} of {'the command' if whole else 'a worker':11s} {len(now):3d} finished", flush=True)
        code = process.wait()
        complaints = process.stderr.read().decode() if process.stderr else ""
        same = results(out).to_csv(times=False) == expected
    print(f"{kills} kills; exit status {code}; {twice} runs done twice; table {'identical' if same else 'DIFFERENT'}")
    if code or twice or not same:
        raise SystemExit(complaints or 1)


if __name__ == "__main__":
    main()

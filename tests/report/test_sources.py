"""Sources of reports: runs, folders, tables and sweeps are one source; what is missing or wrong is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

import samples
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, SettingError, UnknownNameError
from calprompt.results.sources import read_source
from calprompt.results.table import Table
from calprompt.sweep.sweep_file import read_sweep
from report import reports
from report import rows as sample_rows


def folders() -> list[Path]:
    return sorted(path.parent for path in reports.runs().glob("*/run.json"))


def test_a_folder_and_its_runs_are_the_same_source() -> None:
    whole, parts = read_source(reports.runs()), read_source(*folders())
    assert whole.table.to_csv(times=False) == parts.table.to_csv(times=False)
    assert {run.folder.name for run in whole.runs} == {run.folder.name for run in parts.runs} == set(whole.run_of)
    assert len(whole.runs) == 4
    assert whole.unfinished == ()
    assert all(row["model"] for row in whole.measured.rows)


def test_a_table_of_the_same_runs_adds_nothing(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_bytes(read_source(reports.runs()).table.to_csv())
    both = read_source(table, out=reports.runs())
    assert both.table.to_csv(times=False) == read_source(reports.runs()).table.to_csv(times=False)
    assert read_source(table).runs == ()


def test_run_folders_win_over_rows_of_tables(tmp_path: Path) -> None:
    """Another processor rounds otherwise: what a table says of a run gives way to its logits."""
    whole = read_source(reports.runs())
    other = Table(tuple({**row, "ece": row["ece"] + 1e-7} for row in whole.table.rows))
    (tmp_path / "elsewhere.csv").write_bytes(other.to_csv())
    both = read_source(tmp_path / "elsewhere.csv", reports.runs())
    assert both.table.to_csv(times=False) == whole.table.to_csv(times=False)


def test_sweep_selects_its_runs_and_lists_missing_ones(tmp_path: Path) -> None:
    """Of all results, those of the sweep's cells count; a cell that is nowhere is a row without numbers."""
    sweep = read_sweep("paper/pocket-moments")
    some = sample_rows.sweep_rows(sweep, cells=sweep.cells[:5])
    table = tmp_path / "some.csv"
    table.write_bytes(Table((*some.rows, *sample_rows.sweep_rows(read_sweep("paper/pocket-lambda")).rows)).to_csv())
    found = read_source("paper/pocket-moments", table)
    known = {cell.key for cell in sweep.cells[:5]} | {cell.key for cell in read_sweep("paper/pocket-lambda").cells}
    assert len(found.unfinished) == len([cell for cell in sweep.cells if cell.key not in known])
    assert {row["loss"] for row in found.table.rows} == {cell.settings["loss"] for cell in sweep.cells}
    assert all(each.status == "missing" for each in found.unfinished)
    with pytest.raises(NotFoundError, match="no result of the 3 runs of pocket-gradients"):
        read_source("paper/pocket-gradients", table)


def test_where_images_lie_and_where_it_was_computed_do_not_matter(tmp_path: Path) -> None:
    """A sweep that ran with --root and --device elsewhere is still that sweep."""
    rows = sample_rows.sweep_rows(read_sweep("paper/lambda")).rows
    moved = Table(tuple({**row, "root": "/scratch/images", "device": "cuda:1"} for row in rows))
    (tmp_path / "moved.csv").write_bytes(moved.to_csv())
    assert read_source("paper/lambda", tmp_path / "moved.csv").unfinished == ()


def test_rows_with_a_fingerprint_replace_those_without(tmp_path: Path) -> None:
    """A table that does not say which run a number is of yields to one that does."""
    rows = sample_rows.sweep_rows(read_sweep("paper/pocket-lambda")).rows
    vague = tuple({**row, "run": None, "fingerprint": None, "accuracy": 0.5} for row in rows)
    for name, table in (("known.csv", rows), ("vague.csv", vague)):
        (tmp_path / name).write_bytes(Table(table).to_csv())
    found = read_source("paper/pocket-lambda", tmp_path / "vague.csv", tmp_path / "known.csv")
    assert len(found.table.rows) == len(rows)
    assert all(row["fingerprint"] for row in found.table.rows)


def test_failed_and_unfinished_runs_are_reported(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    shutil.copytree(reports.runs(), out)
    failed, damaged, lost = sorted(path.parent for path in out.glob("*/run.json"))[:3]
    samples.edit_record(failed, lambda record: record.update(status="failed", reason="out of memory"))
    (damaged / "run.json").write_text("{}")
    (lost / "logits.safetensors").unlink()
    found = read_source(out)
    assert {each.status for each in found.unfinished} == {"failed", "damaged", "interrupted"}
    assert next(each.reason for each in found.unfinished if each.status == "failed") == "out of memory"
    assert len(found.runs) == 1


def test_wrong_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="at least one place"):
        read_source()
    with pytest.raises(SettingError, match="no results of its own; give the folder of its runs"):
        read_source("paper/pocket-main")
    with pytest.raises(UnknownNameError, match="pocket-main"):
        read_source("paper/pocket-mane", reports.runs())
    with pytest.raises(NotFoundError, match="there is nothing at nowhere"):
        read_source("nowhere")
    with pytest.raises(NotFoundError, match="there are no runs in"):
        read_source(tmp_path)
    (tmp_path / "inner").mkdir()
    shutil.copytree(folders()[0], tmp_path / "inner" / "run")
    with pytest.raises(NotFoundError, match=r"there are some in .*inner"):
        read_source(tmp_path)
    (tmp_path / "note.txt").write_text("?")
    with pytest.raises(SettingError, match=r"note\.txt is not a run folder"):
        read_source(tmp_path / "note.txt")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DamagedFileError, match="not a table of results"):
        read_source(tmp_path / "other.csv")
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"settings": {}}))
    with pytest.raises(CalpromptError, match="backbone is missing"):
        read_source(tmp_path / "grid.yaml", reports.runs())

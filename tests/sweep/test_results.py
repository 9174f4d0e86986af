"""The table of results: every run has its rows, what is missing says so, and tables of machines fit together."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pyarrow
import pytest
from pyarrow import parquet

import samples
from calprompt.cli import main
from calprompt.errors import CalpromptError, DamagedFileError, NotFoundError, SettingError
from calprompt.evaluation.output import write_evaluations
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings
from calprompt.metrics import metrics
from calprompt.results.collecting import results
from calprompt.results.sources import read_source
from calprompt.results.table import TIMES, Table, merge_tables, read_table
from calprompt.runs.config import RunConfig
from calprompt.runs.folder import EVALUATION, load_run
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from calprompt.training_config import TrainingConfig
from sweep import sweeps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one that diverged, and one whose data are missing."""
    place = tmp_path_factory.mktemp("made")
    axes = {"loss": ["ce", "tcpt", "ce + 1e30*moments"], "data": [str(samples.feature_file())]}
    file = sweeps.write(place / "tiny.yaml", axes=axes, seeds=[1], calibrators=["temperature", "vector"])
    run_sweep(plan_sweep(read_sweep(file), place / "out"), executor=sweeps.Here(), store=False)
    more = sweeps.write(place / "more.yaml", axes={"data": [str(place / "none.safetensors")]}, seeds=[1])
    run_sweep(plan_sweep(read_sweep(more), place / "out"), executor=sweeps.Here(), store=False)
    return place / "out"


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def rows(text: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_every_run_has_its_rows(out: Path) -> None:
    table = results(out)
    finished = [row for row in table.rows if row["status"] == "finished"]
    assert len(finished) == 2 * 2 * 3 * 2  # runs, models, calibrators, splits
    run = load_run(next(path.parent for path in sorted(out.glob("*/metrics.json"))))
    by = {(row["model"], row["calibrator"], row["split"]): row for row in finished if row["run"] == run.folder.name}
    for split in ("base", "novel"):
        for metric in metrics.available():
            assert by["tuned", "none", split][metric] == run.metrics[split][metric]
            assert by["zero-shot", "none", split][metric] == run.metrics["zero_shot"][split][metric]
    assert by["tuned", "none", "base"]["images"] == run.metrics["base"]["images"]
    assert by["tuned", "vector", "novel"].get("ece") is None  # it is for the classes it was fitted on
    assert "does not apply to others" in by["tuned", "vector", "novel"]["reason"]
    row = by["tuned", "temperature", "base"]
    assert row["fingerprint"] == run.record["fingerprint"]
    assert json.loads(row["options"]) == {"context": 2}
    assert (row["epochs"], row["seed"], row["shots"], row["version_calprompt"]) == (3, 1, 4, "0.1.0")
    assert row["processor"]
    assert row["seconds_train"] == run.record["timings"]["train"]
    assert row["seconds_total"] == pytest.approx(sum(run.record["timings"].values()))
    assert row["peak_memory"] >= row["peak_memory_train"] > 10**7
    took = run.record["training"]
    assert (row["seconds_step"], row["seconds_epoch_q90"]) == (
        took["step_seconds"]["median"],
        took["epoch_seconds"]["q90"],
    )
    assert row["cpu_seconds_train"] == took["cpu_seconds"]
    assert row["peak_device_memory"] is None


def test_every_setting_is_a_column(out: Path) -> None:
    from dataclasses import fields

    names = {field.name for kind in (RunConfig, TrainingConfig) for field in fields(kind)} - {"training", "classes"}
    assert names | {"classes_file"} <= set(results(out).columns)


def test_failed_and_missing_cells_are_reported(out: Path) -> None:
    (out / "sweep-more.json").write_text("damaged")  # the cells of that sweep are then not known any more
    lost = next(path.parent for path in sorted(out.glob("*/metrics.json")))
    shutil.rmtree(lost)
    others = [row for row in results(out).rows if row.get("model") is None]
    assert sorted(row["status"] for row in others) == ["failed", "missing"]
    assert all(row.get("accuracy") is None for row in others)
    cells = [each for each in rows(results(out).to_csv()) if each["status"] in ("failed", "missing")]
    assert {each["ece"] for each in cells} == {""}
    assert {each["tuner"] for each in cells} == {"coop"}


def test_a_cell_that_never_began_has_its_reason(out: Path) -> None:
    never = [row for row in results(out).rows if row.get("run") is None]
    assert [row["status"] for row in never] == ["failed"] * 1
    assert "there is no data at" in never[0]["reason"]


def test_measurements_are_made_once_and_only_count_for_their_logits(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results(out)
    folder = next(path.parent for path in sorted(out.glob("*/metrics.json")))
    (folder / EVALUATION).write_text("damaged")
    assert results(out) == before  # measured again, and kept
    with monkeypatch.context() as patch:
        patch.setattr(
            "calprompt.evaluation.run_evaluation.evaluate_run", lambda *_: pytest.fail("was measured already")
        )
        assert results(out) == before
    with_more = results(out, calibrators=["dac"])
    assert {row.get("calibrator") for row in with_more.rows} == {"none", "dac", None}
    assert results(out) == before  # what was there is still there
    intervals = evaluate_run(folder, EvaluationSettings(calibrators=("sals",), bootstrap=5))
    write_evaluations([intervals])
    kept = (folder / EVALUATION).read_bytes()
    assert results(out) == before
    assert (folder / EVALUATION).read_bytes() == kept  # somebody waited for its intervals


def test_a_damaged_finished_run_is_a_row(out: Path) -> None:
    folder = next(path.parent for path in sorted(out.glob("*/metrics.json")))
    (folder / "metrics.json").write_text("{}")
    (row,) = [row for row in results(out).rows if row.get("run") == folder.name]
    assert row["status"] == "damaged"
    assert "metrics.json" in row["reason"]


def test_tables_are_read_back_and_filtered(out: Path, tmp_path: Path) -> None:
    table = results(out)
    (tmp_path / "a.csv").write_bytes(table.to_csv())
    back = read_table(tmp_path / "a.csv")
    assert back.to_csv() == table.to_csv()
    assert back.sorted().to_csv() == table.to_csv()
    chosen = table.filter(loss="tcpt", split="novel", seed="1", **{"options.context": "2"})
    assert len(chosen.rows) == 6
    assert not table.filter(seed="2").rows
    with pytest.raises(SettingError, match=r"unknown column 'los'\. Did you mean 'loss'"):
        table.filter(los="ce")
    assert not set(TIMES) & set(rows(table.to_csv(times=False))[0])


def test_commands(out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "table.csv"
    assert main(["results", str(out), "--filter", "loss=ce", "--csv", str(target), "--no-times"]) == 0
    said = capfd.readouterr().out
    assert "12 rows of 1 run: 1 finished" in said
    assert target.read_bytes() == results(out).filter(loss="ce").to_csv(times=False)
    assert main(["results", str(out), "--csv", "-"]) == 0
    assert capfd.readouterr().out.encode() == results(out).to_csv()
    assert main(["results", str(out), "--merge", str(target)]) == 0
    assert "failed: coop, ce + 1e30*moments" in capfd.readouterr().out
    assert main(["results", str(out), "--filter", "loss"]) == 2
    assert main(["results", str(tmp_path / "nowhere")]) == 2
    assert main(["results", str(target), "--merge", str(tmp_path / "nowhere.csv")]) == 2


def columns_of(path: Path) -> tuple[list[str], dict[str, str], dict[str, list[Any]]]:
    """Names, types and values of the columns of a Parquet file, as pyarrow reads it."""
    found = parquet.read_table(path)
    kinds = {field.name: str(field.type) for field in found.schema}
    return found.column_names, kinds, found.to_pydict()


def test_parquet_is_the_table_that_csv_is(out: Path, tmp_path: Path) -> None:
    csv_file, file = tmp_path / "table.csv", tmp_path / "table.parquet"
    assert main(["results", str(out), "--csv", str(csv_file), "--parquet", str(file)]) == 0
    names, kinds, values = columns_of(file)
    texts = rows(csv_file.read_bytes())
    assert names == list(texts[0])
    assert {len(column) for column in values.values()} == {len(texts)}
    for name in names:
        for value, row in zip(values[name], texts, strict=True):
            assert (value is None) == (row[name] == ""), name
            if value is not None:
                assert value == {"string": str, "int64": int, "double": float}[kinds[name]](row[name]), name
    assert any(value is None for value in values["ece"])
    assert read_table(file).to_csv() == read_table(csv_file).to_csv() == csv_file.read_bytes()
    assert main(["results", str(out), "--parquet", str(file), "--no-times"]) == 0
    assert columns_of(file)[0] == [name for name in names if name not in TIMES]


def test_parquet_types_follow_the_settings(out: Path, tmp_path: Path) -> None:
    (tmp_path / "table.parquet").write_bytes(results(out).to_parquet())
    _, kinds, _ = columns_of(tmp_path / "table.parquet")
    hints = {**get_type_hints(RunConfig), **get_type_hints(TrainingConfig)}
    hints["classes_file"] = hints.pop("classes")
    del hints["training"]
    for name, hint in hints.items():
        alternatives = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        kind = next(each for each in alternatives if each is not type(None))
        assert kinds[name] == {int: "int64", float: "double"}.get(kind, "string"), name
    assert {kinds[name] for name in metrics.available()} == {"double"}
    assert {kinds["images"], kinds["peak_memory"]} == {"int64"}
    assert {kinds[name] for name in ("run", "note", "reason", "version_torch")} == {"string"}


def test_whole_numbers_among_others_are_the_same_in_both(tmp_path: Path) -> None:
    """As `momentum: 0` in a file is a whole number, while that of other runs is none."""
    settings = {"momentum": 0, "weight_decay": 0}
    file = sweeps.write(tmp_path / "tiny.yaml", axes={"loss": ["ce"]}, settings=settings, seeds=[1])
    run_sweep(plan_sweep(read_sweep(file), tmp_path / "out"), executor=sweeps.Here(), store=False)
    table = results(tmp_path / "out")
    (tmp_path / "a.csv").write_bytes(table.to_csv())
    (tmp_path / "a.parquet").write_bytes(table.to_parquet())
    assert read_table(tmp_path / "a.parquet").to_csv() == read_table(tmp_path / "a.csv").to_csv() == table.to_csv()
    assert read_table(tmp_path / "a.parquet").rows == read_table(tmp_path / "a.csv").rows
    for text in ("0", "0.0", "0.00"):
        assert table.filter(momentum=text).rows == table.rows
    assert not table.filter(momentum="0.9").rows
    assert merge_tables([table, read_table(tmp_path / "a.parquet")]).to_csv() == table.to_csv()


def test_rows_of_a_parquet_file_are_in_the_order_of_all_tables(out: Path, tmp_path: Path) -> None:
    table = results(out)
    mixed = Table(table.rows[::-1], table.source)
    (tmp_path / "mixed.parquet").write_bytes(mixed.to_parquet())
    back = read_table(tmp_path / "mixed.parquet")
    assert back.to_csv() == mixed.to_csv()  # as it was written
    assert back.sorted().to_csv() == table.to_csv()
    (tmp_path / "none.parquet").write_bytes(Table(()).to_parquet())
    assert read_table(tmp_path / "none.parquet").rows == ()


def test_without_pyarrow(out: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    target = out / "table.parquet"
    assert main(["results", str(out), "--parquet", str(target)]) == 2
    assert "pip install 'calprompt[parquet]'" in " ".join(capfd.readouterr().err.split())
    assert not target.exists()


def test_files_that_are_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no table or folder of runs at .*none.parquet"):
        read_table(tmp_path / "none.parquet")
    (tmp_path / "a.parquet").write_text("run,model\n")
    with pytest.raises(DamagedFileError, match=r"a.parquet is not a Parquet file of results"):
        read_table(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DamagedFileError, match="it has no column run"):
        read_table(tmp_path / "b.parquet")


def changed(table: Table, source: str = "other", **values: Any) -> Table:
    """The same, with other values in its first measured row."""
    place = next(number for number, row in enumerate(table.rows) if row.get("model"))
    new = {**table.rows[place], **values}
    return Table((*table.rows[:place], new, *table.rows[place + 1 :]), source)


def test_tables_of_several_machines(out: Path, tmp_path: Path) -> None:
    """Each has half of the runs; together they are the whole, in whatever order."""
    whole = results(out)
    halves = []
    for loss in ("ce", "tcpt"):
        half = Path(shutil.copytree(out, tmp_path / loss))
        for path in half.glob("*/run.json"):
            if load_run(path.parent).record["config"]["loss"] != loss:
                shutil.rmtree(path.parent)
        halves.append(results(half))
        assert any(row["status"] == "missing" for row in halves[-1].rows)
    both = merge_tables(halves)
    assert both.to_csv() == merge_tables(halves[::-1]).to_csv()
    finished = [row for row in both.rows if row["status"] == "finished"]
    assert finished == [row for row in whole.rows if row["status"] == "finished"]
    assert merge_tables([both, whole]).to_csv() == whole.to_csv()


def test_conflicts_are_shown(out: Path, tmp_path: Path) -> None:
    table = results(out)
    value = next(row["ece"] for row in table.rows if row.get("model"))
    with pytest.raises(CalpromptError) as caught:
        merge_tables([table, changed(table, ece=value + 1e-6)])
    assert f"ece is {value!r} in {out} and {value + 1e-6!r} in other" in str(caught.value)
    with pytest.raises(CalpromptError, match=r"images is 24 in .* and 25 in other"):
        merge_tables([table, changed(table, images=25)])
    assert merge_tables([table, changed(table, seconds_train=99.0)]).to_csv() == table.to_csv()


def test_rounded_files_are_no_conflict(out: Path, tmp_path: Path) -> None:
    table = results(out)

    def rounded(digits: int, shift: float = 0.0) -> Table:
        measured = [
            {
                name: round(value + shift, digits) if name in table.metrics and value is not None else value
                for name, value in row.items()
            }
            for row in table.rows
        ]
        (tmp_path / "rounded.csv").write_bytes(Table(tuple(measured)).to_csv())
        return read_table(tmp_path / "rounded.csv")

    assert merge_tables([table, rounded(4)]).to_csv() == table.to_csv()
    with pytest.raises(CalpromptError, match="different numbers in two tables"):
        merge_tables([table, rounded(4, shift=0.001)])


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(CalpromptError, match="it has no column run"):
        read_table(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(CalpromptError, match="cannot read the table"):
        read_table(tmp_path / "b.csv")


def test_a_compressed_table_is_the_same(out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain, small = tmp_path / "table.csv", tmp_path / "table.csv.xz"
    for file in (plain, small):
        assert main(["results", str(out), "--csv", str(file)]) == 0
    assert small.stat().st_size < plain.stat().st_size / 4
    assert read_table(small).rows == read_table(plain).rows
    assert read_table(small).decimals == read_table(plain).decimals
    small.write_bytes(small.read_bytes()[:-40])
    with pytest.raises(CalpromptError, match="cannot read the table"):
        read_table(small)


def test_rows_are_found_by_the_settings_of_a_sweep(out: Path, tmp_path: Path) -> None:
    """Also those that were read from a file, and whatever made them."""
    path = tmp_path / "table.csv"
    path.write_bytes(results(out).to_csv())
    table = read_table(path)
    found = read_source(path, sweeps.write(tmp_path / "some.yaml", axes={"loss": ["tcpt"]}, seeds=[1])).measured
    expected = [row for row in table.rows if (row["loss"], row["data"]) == ("tcpt", str(samples.feature_file()))]
    assert list(found.rows) == expected
    assert found.rows
    elsewhere = sweeps.write(tmp_path / "others.yaml", settings={"batch_size": 7}, seeds=[1])
    with pytest.raises(NotFoundError, match="has no result of the 2 runs of others"):
        read_source(path, elsewhere)


def test_tables_without_fingerprints_merge_by_settings(out: Path) -> None:
    """Such as those of earlier measurements."""
    measured = [row for row in results(out).rows if row.get("model")]
    bare = Table(tuple({**row, "fingerprint": None, "run": None} for row in measured))
    assert len(merge_tables([bare, bare]).rows) == len(measured)
    with pytest.raises(CalpromptError, match="different numbers"):
        merge_tables([bare, changed(bare, ece=0.5)])

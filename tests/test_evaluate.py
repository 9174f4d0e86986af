"""`calprompt evaluate`: numbers that can be recomputed from the logits file, what is not applicable, and mistakes."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import samples
from calprompt import calibrators, losses
from calprompt.cli import main
from calprompt.cli.app import create_parser
from calprompt.evaluation.bootstrap import NOT_COVERED
from calprompt.evaluation.output import tidy_rows
from calprompt.evaluation.run_evaluation import Accepted, evaluate_run, select, subset
from calprompt.evaluation.settings import EvaluationSettings, create_calibrator
from calprompt.metrics import guaranteed_threshold
from calprompt.runs.execute import run
from calprompt.runs.folder import load_run
from calprompt.sealed_files import read_tensor_file, tensor_file

BASE_TO_NOVEL = {"epochs": 20, "shots": None, "lr": 0.05, "loss": "ce", "options": {"context": 8}}


@cache
def trained(kind: str) -> Path:
    """Folder of a run; no test writes into it."""
    settings: dict[str, Any] = {
        "usual": BASE_TO_NOVEL,
        "few-shot": {"protocol": "few-shot"},
        "class-specific": {"options": {"context": 2, "class_specific": True}},
        "without val": {},
    }[kind]
    data = noisy(samples.tensors(each=30)) if kind == "usual" else samples.tensors()
    if kind == "without val":
        data = {name: tensor for name, tensor in data.items() if not name.startswith("val")}
    path = samples.tensor_file(samples.shared() / f"{kind}.safetensors", data)
    return run(samples.config(path, **settings), samples.shared() / "runs").folder


def noisy(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """Harder: some images of every split are wrong."""
    generator = torch.Generator().manual_seed(8)
    return {
        name: tensor if name.endswith("labels") else tensor + 1.2 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in data.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of its own."""
    return Path(shutil.copytree(trained("usual"), tmp_path / "runs" / trained("usual").name))


def copied(kind: str, to: Path) -> Path:
    return Path(shutil.copytree(trained(kind), to / trained(kind).name))


def evaluated(*given: object) -> int:
    return main(["evaluate", *map(str, given), "--bootstrap", "50"])


def rows_of(path: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    rows = json.loads(path.read_text())["rows"]
    found = {(row["model"], row["split"], row["calibrator"], row["metric"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def plain_metrics(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Written from the definitions, without the library."""
    p = logits.double().softmax(dim=1)
    confidence, predicted = p.max(dim=1)
    right = (predicted == labels).double()
    gaps, shares = [], []
    for b in range(10):
        inside = (confidence > b / 10) & (confidence <= (b + 1) / 10)
        if inside.any():
            gaps.append(abs(float(right[inside].mean() - confidence[inside].mean())))
            shares.append(float(inside.double().mean()))
    classwise = 0.0
    for k in range(p.shape[1]):
        for b in range(10):
            inside = (p[:, k] > b / 10) & (p[:, k] <= (b + 1) / 10)
            classwise += abs(float((p[inside, k] - (labels[inside] == k).double()).sum()))
    risks = [1 - float(right[confidence >= own].mean()) for own in confidence]
    one_hot = torch.nn.functional.one_hot(labels, p.shape[1]).double()
    return {
        "accuracy": float(right.mean()),
        "ece": sum(g * s for g, s in zip(gaps, shares, strict=True)),
        "mce": max(gaps),
        "weighted_mce": max(g * s for g, s in zip(gaps, shares, strict=True)),
        "classwise_ece": classwise / p.numel(),
        "nll": float(torch.nn.functional.cross_entropy(logits.double(), labels)),
        "brier": float((p - one_hot).square().sum(dim=1).mean()),
        "confidence_gap": float(confidence.mean() - right.mean()),
        "aurc": float(np.mean(risks)),
    }


def test_numbers_equal_the_logits_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = "temperature -> dac"
    assert evaluated(folder, "--calibrators", "temperature", "sals", chain, "--zero-shot") == 0
    printed = capsys.readouterr().out
    tensors = load_file(folder / "logits.safetensors")
    found = rows_of(folder / "evaluation.json")
    record = json.loads((folder / "evaluation.json").read_text())
    states = {(each["model"], each["calibrator"]): each["state"] for each in record["runs"][0]["calibrators"]}
    val = tensors["val/logits"].double()
    t = states["tuned", "temperature"]["temperature"]

    def val_nll(temperature: float) -> float:
        return float(torch.nn.functional.cross_entropy(val / temperature, tensors["val/labels"]))

    assert val_nll(t) < min(val_nll(t * 1.01), val_nll(t / 1.01), val_nll(1.0)), "fitted on val, and on nothing else"
    for split in ("base", "novel"):
        labels, logits = tensors[f"{split}/labels"], tensors[f"{split}/logits"]
        maps = {
            ("tuned", "none"): logits,
            ("tuned", "temperature"): logits.double() / t,
            ("zero-shot", "none"): tensors[f"{split}/zero_shot_logits"],
            ("zero-shot", "sals"): tensors[f"{split}/zero_shot_logits"],
        }
        if split == "base":
            maps["tuned", chain] = maps["tuned", "temperature"]  # dac leaves base classes alone
        for (model, calibrator), mapped in maps.items():
            for metric, value in plain_metrics(mapped, labels).items():
                row = found[model, split, calibrator, metric]
                assert row["value"] == pytest.approx(value, abs=1e-9), (model, split, calibrator, metric)
                assert (row["n"], row["run"]) == (90, folder.name)
                if metric in ("accuracy", "nll", "brier", "confidence_gap"):
                    assert row["low"] < row["value"] < row["high"]
                elif metric in NOT_COVERED:
                    assert row["low"] is row["high"] is None
                else:
                    assert row["low"] <= row["high"]
            for metric in ("ece", "ace"):
                row = found[model, split, calibrator, f"{metric}_debiased"]
                assert row["low"] <= row["value"] <= found[model, split, calibrator, metric]["value"] <= row["high"]
                assert 0 <= found[model, split, calibrator, f"{metric}_p_value"]["value"] <= 1
    novel = [found["tuned", "novel", each, "nll"]["value"] for each in ("temperature", chain)]
    assert novel[0] != novel[1], "dac does something on novel classes"
    ece = found["tuned", "base", "none", "ece_debiased"]
    assert f"{100 * ece['value']:.2f} [{100 * ece['low']:.2f}, {100 * ece['high']:.2f}]" in printed
    gap = found["tuned", "novel", "temperature", "confidence_gap"]
    assert f"{100 * gap['value']:+.2f} [{100 * gap['low']:+.2f}, {100 * gap['high']:+.2f}]" in printed
    assert record["settings"]["calibrators"] == ["none", "temperature", "sals", chain]
    assert set(record["versions"]) == {"calprompt", "torch", "numpy", "python"}
    assert record["runs"][0]["fingerprint"] == load_run(folder).record["fingerprint"]
    assert record["runs"][0]["splits"]["novel"] == {"images": 90, "classes": 3}


def test_uncalibrated_numbers_equal_the_run(folder: Path) -> None:
    assert evaluated(folder, "--zero-shot", "--calibrators", "none") == 0
    metrics, found = load_run(folder).metrics, rows_of(folder / "evaluation.json")
    assert {key[2] for key in found} == {"none"}
    for split in ("base", "novel"):
        for model, values in (("tuned", metrics[split]), ("zero-shot", metrics["zero_shot"][split])):
            for metric in set(values) - {"images", "classes"}:
                assert found[model, split, "none", metric]["value"] == values[metric]


def test_tables_fit_the_width_and_show_guarantees(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["temperature", "dac", "sals", "vector", "temperature -> dac(k=2)", "histogram"]
    assert evaluated(folder, "--calibrators", *names, "--zero-shot", "--target-error", "0.3") == 0
    printed = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in printed[:-1]) <= 100  # the last is a path
    assert "n/a (novel, vector; novel, zero-shot vector): vector is for the classes it was fitted on" in "\n".join(
        printed
    )
    assert evaluated(folder, "--calibrators", "vector", "histogram") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["none", "vector", "histogram"] in lines
    assert ["keeps", "predictions", "yes", "no", "no"] in lines
    assert ["for", "novel", "classes", "yes", "no", "yes"] in lines
    every = "\n".join(printed)
    assert all(label in every for label in ("MCE (textbook)", "MCE (weighted)", "class-wise ECE", "confidence gap"))


@pytest.mark.parametrize(("given", "level", "seed"), [((), 0.95, 0), (("--confidence-level", "0.8"), 0.8, 3)])
def test_thresholds_are_recomputed_from_the_logits(
    folder: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], level: float, seed: int
) -> None:
    out = folder.parent / "thresholds.json"
    wanted = ["--calibrators", "temperature", "--target-error", "0.25", "--seed", seed, *given]
    assert evaluated(folder, *wanted, "--out", out) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"thresholds for an error of at most 25 % among accepted, at {100 * level:.0f} % confidence" in printed
    assert "On novel classes nothing is guaranteed." in printed
    assert "Fitted calibrators saw half of the validation images" in printed
    assert not (folder / "evaluation.json").exists()
    tensors, found = load_file(folder / "logits.safetensors"), rows_of(out)
    record = json.loads(out.read_text())
    selections = {each["calibrator"]: each["selection"] for each in record["runs"][0]["calibrators"]}
    assert (selections["none"]["fitted_on"], selections["none"]["chosen"]["images"]) == (0, 90)
    assert (selections["temperature"]["fitted_on"], selections["temperature"]["chosen"]["images"]) == (45, 45)
    val, labels = tensors["val/logits"].double(), tensors["val/labels"]
    order = np.random.default_rng(seed).permutation(90)
    fitted = calibrators.Temperature().fit(val[order[:45]], labels[order[:45]])
    assert selections["temperature"]["state"] == {"temperature": pytest.approx(fitted.temperature)}
    for name, t, held in (("none", 1.0, order), ("temperature", fitted.temperature, order[45:])):
        confidence, predicted = (val[held] / t).softmax(dim=1).max(dim=1)
        threshold = guaranteed_threshold(confidence, predicted == labels[held], 0.25, level).threshold
        assert found["tuned", "val", name, "threshold"]["value"] == threshold
        for split in ("base", "novel"):
            confidence, predicted = (tensors[f"{split}/logits"].double() / t).softmax(dim=1).max(dim=1)
            accepted = confidence >= threshold
            wrong = (predicted != tensors[f"{split}/labels"])[accepted].double().mean()
            coverage = found["tuned", split, name, "coverage_at_threshold"]["value"]
            assert coverage == pytest.approx(float(accepted.double().mean()))
            assert 0 < coverage < 1
            assert found["tuned", split, name, "error_at_threshold"]["value"] == pytest.approx(float(wrong))


def test_a_confidence_of_just_the_threshold_is_accepted() -> None:
    sure, even, unsure = [5.0, 0.0, 0.0], [0.0, 0.0, -1000.0], [0.673, 0.0, 0.0]  # 0.99, 0.5 and 0.495
    val = calibrators.StoredLogits(torch.tensor([sure] * 60 + [unsure] * 200), torch.tensor([0] * 60 + [1] * 200))
    test = calibrators.StoredLogits(torch.tensor([sure, even, even, unsure]), torch.tensor([0, 0, 1, 0]))
    found = select(create_calibrator("none"), val, {"base": test}, target_error=0.1)
    assert found.threshold == 0.5
    assert found.tests["base"] == Accepted(images=4, accepted=3, wrong=1)


def test_missing_threshold_says_how_many_images_it_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluated(folder, "--calibrators", "dac", "--target-error", "0.001") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "n/a (none): " in printed
    assert "validation images with a confidence of" in printed
    record = json.loads((folder / "evaluation.json").read_text())
    assert all(each["selection"]["chosen"]["threshold"] is None for each in record["runs"][0]["calibrators"])
    assert not any("threshold" in row["metric"] for row in record["rows"])


def test_without_val_only_closed_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied("without val", tmp_path)
    assert evaluated(folder, "--target-error", "0.1") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "n/a (base, temperature; novel, temperature): the run has no validation images, and temperature" in printed
    assert "closed-form calibrators such as dac and sals need none" in printed
    assert "n/a (none): the run has no validation images to choose a threshold on" in printed
    found = rows_of(folder / "evaluation.json")
    assert {key[2] for key in found} == {"none", "dac", "sals"}
    told = json.loads((folder / "evaluation.json").read_text())["runs"][0]["calibrators"]
    assert next(each for each in told if each["calibrator"] == "temperature")["state"] is None


def test_a_few_shot_run_has_all_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied("few-shot", tmp_path)
    assert evaluated(folder, "--calibrators", "vector", "dac", "--target-error", "0.5") == 0
    printed = capsys.readouterr().out
    assert "all: 48 images of 6 classes; fitted on 24 validation images" in printed
    assert "novel classes nothing" not in printed
    found = rows_of(folder / "evaluation.json")
    assert {key[1] for key in found} <= {"all", "val"}
    assert found["tuned", "all", "vector", "ece"]["n"] == 48
    assert found["tuned", "all", "dac", "ece"] == {**found["tuned", "all", "none", "ece"], "calibrator": "dac"}


def test_prompts_of_classes_have_no_novel_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied("class-specific", tmp_path)
    assert evaluated(folder, "--calibrators", "sals", "--zero-shot") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "n/a (novel, none; novel, sals): these prompts were learned class by class" in printed
    found = rows_of(folder / "evaluation.json")
    assert {key[:2] for key in found} == {("tuned", "base"), ("zero-shot", "base"), ("zero-shot", "novel")}


def test_several_runs_in_one_csv(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = copied("few-shot", tmp_path), tmp_path / "new" / "all.csv"
    assert evaluated(folder, other, f"{folder}/", "--calibrators", "dac", "--out", out) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "model", "split", "calibrator", "metric", "value", "low", "high", "n"]
    assert {row["run"] for row in rows} == {folder.name, other.name}
    settings = EvaluationSettings(calibrators=("dac",), bootstrap=50)
    expected = tidy_rows([evaluate_run(each, settings) for each in (folder, other)])
    shown = [{name: "" if value is None else str(value) for name, value in row.items()} for row in expected]
    assert rows == shown
    assert evaluated(folder, "--calibrators", "dac", "--out", tmp_path / "one.json") == 0
    assert json.loads((tmp_path / "one.json").read_text())["rows"] == [
        row for row in expected if row["run"] == folder.name
    ]


def test_runs_of_the_same_name_are_distinguished(folder: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(folder, tmp_path / "elsewhere" / folder.name))
    rows = tidy_rows([evaluate_run(each, EvaluationSettings((), bootstrap=0)) for each in (folder, again)])
    assert {row["run"] for row in rows} == {str(folder.resolve()), str(again.resolve())}


def test_the_seed_decides_and_calibrators_do_not_disturb_each_other(folder: Path) -> None:
    def rows(*names: str, seed: int = 0) -> list[dict[str, Any]]:
        found = tidy_rows([evaluate_run(folder, EvaluationSettings(names, bootstrap=50, seed=seed))])
        return [row for row in found if row["calibrator"] == "none"]

    assert rows("dac") == rows("sals", "temperature")
    first, second = rows("dac"), rows("dac", seed=1)
    assert [row["value"] for row in first] == [row["value"] for row in second]
    assert [row["low"] for row in first] != [row["low"] for row in second]


def test_conventions_and_bins_reach_the_numbers(folder: Path) -> None:
    tensors = load_file(folder / "logits.safetensors")
    from calprompt import metrics

    for convention in ("default", "tcpt", "dac"):
        settings = EvaluationSettings((), convention=convention, bins=7, bootstrap=20)
        (found,) = evaluate_run(folder, settings).calibrated
        expected = metrics.evaluate(
            tensors["novel/logits"], tensors["novel/labels"], from_logits=True, n_bins=7, convention=convention
        )
        assert {name: found.values["novel"][name].value for name in expected} == expected


OWN = """
from calprompt import calibrators

@calibrators.register("halved")
class Halved(calibrators.Calibrator):
    \"\"\"Logits halved, and whatever was learned.\"\"\"
    keeps_argmax, novel, learns = True, True, ("images",)
    images = None

    def learn(self, record):
        self.images = {learned}

    def apply(self, record):
        return record.logits.double() / 2
"""


@pytest.fixture
def own_calibrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrators.calibrators, "_things", dict(calibrators.calibrators._things))


def test_own_calibrator(
    folder: Path, tmp_path: Path, own_calibrators: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(learned="len(record.logits)"))
    assert evaluated(folder, "--import", path, "--calibrators", "halved", "halved -> halved") == 0
    tensors, found = load_file(folder / "logits.safetensors"), rows_of(folder / "evaluation.json")
    for name, divisor in (("halved", 2), ("halved -> halved", 4)):
        expected = plain_metrics(tensors["novel/logits"].double() / divisor, tensors["novel/labels"])
        assert found["tuned", "novel", name, "ece"]["value"] == pytest.approx(expected["ece"], abs=1e-9)
    record = json.loads((folder / "evaluation.json").read_text())
    assert record["runs"][0]["calibrators"][1]["state"] == {"images": 90}
    assert len(record["settings"]["imports"][str(path)]) == 64


def test_own_calibrator_that_cannot_be_written_down(
    folder: Path, tmp_path: Path, own_calibrators: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text(OWN.format(learned="record.logits"))
    assert evaluated(folder, "--import", tmp_path / "bad.py", "--calibrators", "halved") == 2
    assert "state() of the calibrator 'halved' must return plain numbers, text, lists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--calibrators", "temprature"], "unknown calibrator 'temprature'. Did you mean 'temperature'"),
        (["--calibrators", "temperature -> dacc"], "Did you mean 'dac'"),
        (["--calibrators", "dac(q=3)"], "unknown option of calibrator 'dac': 'q'"),
        (["--convention", "tpct"], "Did you mean 'tcpt'"),
        (["--bins", "0"], "--bins must be a whole number of at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--target-error", "5"], "--target-error must be a fraction above 0 and below 1, got 5"),
        (["--target-error", "0.1", "--confidence-level", "1"], "--confidence-level must be a fraction"),
        (["--out", "numbers.txt"], "--out must end in .json or .csv, got 'numbers.txt'"),
        (["--import", "nowhere.py"], "there is no Python file"),
    ],
)
def test_invalid_input_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], given: list[str], says: str
) -> None:
    assert main(["evaluate", str(folder), *given]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert says in output.err
    assert not (folder / "evaluation.json").exists()


def test_a_run_that_cannot_be_used_does_not_keep_others_from_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Path(shutil.copytree(folder, folder.parent / "failed"))
    samples.edit_record(failed, lambda record: record.update(status="failed", reason="the disk was full"))
    (failed / "logits.safetensors").unlink()
    assert evaluated(folder, "nowhere", failed, "--out", tmp_path / "all.csv") == 2
    output = capsys.readouterr()
    assert "2 of 3 runs were left out:\n  there is no folder nowhere; expected the folder of a run" in output.err
    assert "it has failed (the disk was full); correct that" in output.err
    assert "temperature" in output.out
    assert (tmp_path / "all.csv").stat().st_size > 1000


def test_numbers_are_written_before_a_pager_is_quit(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m calprompt evaluate {shlex.quote(str(folder))} --bootstrap 0 | head -1"
    subprocess.run(command, shell=True, capture_output=True, timeout=120)
    assert (folder / "evaluation.json").is_file()


def rewritten(folder: Path, change: Any) -> None:
    """The logits file with its tensors changed, as a faulty version would have written it: all checksums fit."""
    path = folder / "logits.safetensors"
    tensors, metadata = read_tensor_file(path)
    change(tensors)
    path.write_bytes(tensor_file(tensors, metadata))
    samples.edit_record(folder, lambda record: None)


def test_damaged_logits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, whole = folder / "logits.safetensors", (folder / "logits.safetensors").read_bytes()

    def error() -> str:
        assert evaluated(folder) == 2
        return capsys.readouterr().err

    path.write_bytes(whole[: len(whole) // 2])
    assert "logits.safetensors is damaged or of another run" in error()
    path.write_bytes(whole)
    rewritten(folder, lambda tensors: tensors["base/logits"].fill_(float("nan")))
    assert "logits.safetensors is damaged: logits must be finite" in error()
    path.write_bytes(whole)
    rewritten(folder, lambda tensors: tensors.pop("base/labels"))
    assert "logits.safetensors does not hold 'base/labels'" in error()
    path.write_bytes(whole)
    rewritten(folder, lambda tensors: tensors.update({"val/labels": torch.zeros(3, dtype=torch.long)}))
    assert "labels must have the shape [90]" in error()
    path.unlink()
    assert "has no logits.safetensors: it has lost some of its files; its training command" in error()


def test_a_fit_that_fails_is_not_applicable_and_the_others_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(folder, lambda tensors: tensors.update({"val/labels": tensors["val/logits"].argmax(dim=1)}))
    assert evaluated(folder) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "n/a (base, temperature; novel, temperature): no temperature fits: all 90 validation images" in printed
    assert {key[2] for key in rows_of(folder / "evaluation.json")} == {"none", "dac", "sals"}


def test_only_some_images_of_a_record() -> None:
    record = calibrators.StoredLogits(
        torch.arange(8.0).view(4, 2),
        torch.tensor([0, 1, 0, 1]),
        text=torch.randn(4, 2, 3),
        base_text=torch.randn(2, 3),
        frozen_text=torch.randn(2, 3),
        logit_scale=2.0,
    )
    part = subset(record, torch.tensor([3, 0]))
    assert part.logits.tolist() == [[6, 7], [0, 1]]
    assert part.given("labels").tolist() == [1, 0]
    assert torch.equal(part.given("text"), record.given("text")[[3, 0]])
    assert part.base_text is record.base_text
    assert part.zero_shot_logits is None


def test_no_model_is_loaded_or_imported(folder: Path) -> None:
    script = (
        "import sys; from calprompt.cli import main; "
        f"code = main(['evaluate', {str(folder)!r}, '--bootstrap', '0']); "
        "sys.exit(code or ('open_clip' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in folder.iterdir() if path.name not in ("run.json", "history.jsonl")) == [
        "evaluation.json",
        "logits.safetensors",
        "metrics.json",
        "prompts.safetensors",
    ]


def test_defaults_equal_the_library() -> None:
    chosen = create_parser().parse_args(["evaluate", "run"])
    assert set(vars(chosen)) == {"command", "command_name", "runs", "out", "json"}
    assert EvaluationSettings().specs == ("none", "temperature", "dac", "sals")


PAGES = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("command", [line for block in blocks("evaluate.md", "bash") for line in block.splitlines()])
def test_the_page_commands_run(
    command: str, folder: Path, tmp_path: Path, own_calibrators: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses.losses, "_things", dict(losses.losses._things))
    monkeypatch.chdir(tmp_path)
    Path("my_methods.py").write_text(blocks("add-a-loss-or-calibrator.md", "python")[0])
    samples.picture_folder(Path("drawings"), each=3)
    program, *given = shlex.split(command)
    assert program == "calprompt"
    assert main([str(folder) if each.startswith("runs/") else each for each in given]) == 0


def test_the_page_examples_run() -> None:
    scope: dict[str, Any] = {}
    for example in blocks("evaluate.md", "python"):
        exec(compile(example, "docs/evaluate.md", "exec"), scope)
    assert scope["found"].p_value < 0.05 < scope["found"].low
    assert (scope["chosen"].threshold, scope["chosen"].error) == (0.61, 0.01)

"""anchor=True: the fitted logit scale is the best one, and everything after the fit uses it, for every tuner."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

import samples
from calprompt import pocket, tuners
from calprompt.calibrators import Temperature
from calprompt.cli import main
from calprompt.errors import DamagedFileError, DataError
from calprompt.evaluation.models import stored_models
from calprompt.evaluation.settings import create_calibrator
from calprompt.export.onnx_predictor import OnnxPredictor
from calprompt.predictor import Predictor
from calprompt.results.collecting import results
from calprompt.runs.config import RunConfig, Target, build_config
from calprompt.runs.execute import run
from calprompt.runs.folder import LOGITS, PROMPTS, load_run, read_run_tensors
from calprompt.runs.planning import find_finished, plan
from calprompt.runs.preparation import SCALE_RANGE, fit_anchor
from calprompt.runs.resources import Resources
from calprompt.runs.restoring import restore
from calprompt.runs.transfer import evaluate_on
from calprompt.sealed_files import read_tensor_file, tensor_file
from calprompt.sweep.driver import run_sweep
from calprompt.sweep.sweep_file import read_sweep
from calprompt.sweep.sweep_plan import plan_sweep
from export.exported import export
from sweep import sweeps
from tiny import LEARNED

OPTIONS: dict[str, dict[str, Any]] = {"proda": {"prompts": 4, "prompt_batch": 2, "context": 2}}
SHARED = Resources()


def drawn(seed: int, n: int = 60, classes: int = 5, signal: float = 0.15) -> tuple[Tensor, Tensor]:
    """Cosines of images that are classified better than by chance, but not all of them right; and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    cosines = 0.2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    cosines[torch.arange(n), labels] += signal
    return cosines, labels


def nll(scale: float | Tensor, cosines: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scale * cosines, labels)


class TestFit:
    """One number, the best there is."""

    @pytest.mark.parametrize("seed", range(5))
    def test_the_derivative_is_zero_there(self, seed: int) -> None:
        cosines, labels = drawn(seed)
        scale = torch.tensor(fit_anchor(cosines, labels, 8.0).logit_scale, dtype=torch.float64, requires_grad=True)
        first = torch.autograd.grad(nll(scale, cosines, labels), scale, create_graph=True)[0]
        second = torch.autograd.grad(first, scale)[0]
        assert second > 0, "a minimum"
        assert abs(float(first.detach())) < 1e-13 * max(1.0, float(second * scale.detach()))

    @pytest.mark.parametrize("seed", range(5))
    def test_against_scipy(self, seed: int) -> None:
        cosines, labels = drawn(seed)
        found = minimize_scalar(
            lambda scale: float(nll(scale, cosines, labels)), bounds=(2, 32), method="bounded", options={"xatol": 1e-9}
        )
        assert fit_anchor(cosines, labels, 8.0).logit_scale == pytest.approx(found.x, rel=1e-5)

    @pytest.mark.parametrize("seed", range(5))
    def test_against_the_temperature_calibrator(self, seed: int) -> None:
        cosines, labels = drawn(seed)
        temperature = Temperature().fit(8.0 * cosines, labels).temperature
        assert temperature is not None
        assert fit_anchor(cosines, labels, 8.0).logit_scale == pytest.approx(8.0 / temperature, rel=1e-12)

    @given(st.integers(0, 10_000), st.floats(0.01, 100.0), st.floats(-3.0, 3.0))
    def test_what_does_not_change_it(self, seed: int, factor: float, shift: float) -> None:
        """Cosines times c give the scale divided by c; a constant and the order of images change nothing."""
        cosines, labels = drawn(seed)
        anchor = fit_anchor(cosines, labels, 8.0)
        stretched = fit_anchor(factor * cosines, labels, 8.0 / factor)
        assert stretched.logit_scale * factor == pytest.approx(anchor.logit_scale, rel=1e-9)
        assert stretched.end == anchor.end
        assert fit_anchor(cosines + shift, labels, 8.0).logit_scale == pytest.approx(anchor.logit_scale, rel=1e-9)
        turned = fit_anchor(cosines.flip(0), labels.flip(0), 8.0)
        assert turned.logit_scale == pytest.approx(anchor.logit_scale, rel=1e-9)

    @given(st.integers(0, 10_000), st.floats(0.5, 200.0), st.floats(-0.3, 1.0))
    def test_it_is_in_its_range_and_no_worse_than_the_model(self, seed: int, own: float, signal: float) -> None:
        cosines, labels = drawn(seed, n=12, classes=3, signal=signal)
        anchor = fit_anchor(cosines, labels, own)
        assert own / SCALE_RANGE <= anchor.logit_scale <= own * SCALE_RANGE
        assert (anchor.end is None) == (own / SCALE_RANGE < anchor.logit_scale < own * SCALE_RANGE)
        assert anchor.nll <= anchor.own_nll * (1 + 1e-12)
        assert anchor.nll == pytest.approx(float(nll(anchor.logit_scale, cosines, labels)))

    def test_ends_of_the_range(self) -> None:
        labels = torch.tensor([0, 1])
        right = torch.tensor([[0.3, 0.1], [0.1, 0.3]])
        assert fit_anchor(right, labels, 10.0).logit_scale == 40.0
        assert "the larger it is" in fit_anchor(right, labels, 10.0).warning
        assert "40, which is 4 times" in fit_anchor(right, labels, 10.0).warning
        assert fit_anchor(-right, labels, 10.0).logit_scale == 2.5
        assert "2.5, which is 1/4 of" in fit_anchor(-right, labels, 10.0).warning
        same = fit_anchor(torch.full((2, 2), 0.3), labels, 10.0)
        assert (same.logit_scale, same.end) == (10.0, None), "any scale is as good"

    def test_nothing_to_fit_on(self) -> None:
        with pytest.raises(DataError, match="no training images"):
            fit_anchor(torch.empty(0, 3), [], 10.0)
        with pytest.raises(DataError, match="not finite"):
            fit_anchor(torch.tensor([[float("nan"), 1.0]]), [0], 10.0)


@cache
def photos() -> Path:
    """Pictures that the embedded model knows something about, as anybody's folder."""
    source, root = pocket.folder("photos"), samples.shared() / "anchor photos"
    for folder in sorted((source / "test").iterdir())[:6]:
        (root / folder.name).mkdir(parents=True)
        for picture in sorted(folder.iterdir())[:20]:
            shutil.copy(picture, root / folder.name)
    return root


def config(tuner: str = "coop", **settings: Any) -> RunConfig:
    """A run of a second on the embedded model."""
    usual = {"backbone": "pocket", "data": str(photos()), "tuner": tuner, "options": OPTIONS.get(tuner, {})}
    training = {"epochs": 2, "batch_size": 8, "lr": 0.01, "warmup_epochs": 1}
    return build_config(**{**usual, **training, "shots": 8, "views": 1, "anchor": True, **settings})


@cache
def trained(tuner: str = "coop", anchor: bool = True) -> Path:
    """Folder of a run; no test writes into it."""
    return run(config(tuner, anchor=anchor), samples.shared() / "anchored", resources=SHARED).folder


def stored(folder: Path, split: str) -> tuple[list[str], dict[str, Tensor], dict[str, Any]]:
    """Paths of a split's images, and what the run stored of them."""
    tensors, metadata = read_run_tensors(folder, LOGITS, load_run(folder).record)
    kinds = {name.removeprefix(f"{split}/"): each for name, each in tensors.items() if name.startswith(f"{split}/")}
    return [str(photos() / name) for name in metadata["image_names"][split]], kinds, metadata


def close(found: Any, expected: Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(found).double(), expected.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tuner", [*LEARNED, "zero-shot"])
class TestEveryTuner:
    """The scale that was fitted before tuning is the one in use ever after."""

    def test_the_scale_is_in_the_record_and_with_prompts_and_logits(self, tuner: str) -> None:
        folder = trained(tuner)
        anchor = load_run(folder).record["anchor"]
        assert anchor["end"] is None
        assert anchor["images"] == 24
        assert anchor["nll"] < anchor["own_nll"]
        own = float(SHARED.backbone("pocket").logit_scale)
        assert anchor["own_scale"] == own != anchor["logit_scale"]
        assert read_tensor_file(folder / PROMPTS)[1]["logit_scale"] == anchor["logit_scale"]
        metadata = stored(folder, "base")[2]
        assert (metadata["logit_scale"], metadata["zero_shot_logit_scale"]) == (anchor["logit_scale"], own)
        assert load_run(folder).title.startswith(f"{tuner} (tcpt, anchored)")

    def test_it_is_the_best_for_the_training_images(self, tuner: str) -> None:
        """Computed again from the model and the files, as they are tested: no random crop."""
        planned, backbone = plan(config(tuner), resources=SHARED), SHARED.backbone("pocket")
        zero_shot = Predictor(tuners.create("zero-shot", backbone, planned.base.class_names, template=planned.template))
        names = [str(photos() / path) for path in planned.base.train.images.paths]
        logits = torch.from_numpy(zero_shot.predict_proba(names)).log()
        labels = torch.tensor(planned.base.train.labels)
        temperature = Temperature().fit(logits, labels).temperature
        assert temperature is not None
        fitted = load_run(trained(tuner)).record["anchor"]["logit_scale"]
        assert fitted == pytest.approx(float(backbone.logit_scale) / temperature, rel=1e-4)

    @pytest.mark.parametrize("part", ["base", "novel"])
    def test_predictions_are_the_stored_probabilities(self, tuner: str, part: str) -> None:
        paths, kinds, _ = stored(trained(tuner), part)
        predictor = Predictor.from_run(trained(tuner), part=part, resources=SHARED)
        close(predictor.predict_proba(paths[::4]), kinds["logits"][::4].double().softmax(dim=1))

    @pytest.mark.parametrize("spec", ["temperature", "dac", "sals", "temperature_sgd"])
    def test_so_are_calibrated_ones(self, tuner: str, spec: str) -> None:
        model = stored_models(load_run(trained(tuner)))["tuned"]
        calibrator = create_calibrator(spec)
        if calibrator.learns:
            assert model.val is not None
            calibrator.fit(model.val)
        paths, _, _ = stored(trained(tuner), "novel")
        predictor = Predictor.from_run(trained(tuner), part="novel", calibrator=spec, resources=SHARED)
        close(predictor.predict_proba(paths[::4]), calibrator(model.tests["novel"]).softmax(dim=1)[::4])

    def test_other_data_get_it_too(self, tuner: str, tmp_path: Path) -> None:
        """The run's own pictures under another name are other data with the same answers."""
        folder = Path(shutil.copytree(trained(tuner), tmp_path / "run"))
        elsewhere = Path(shutil.copytree(photos(), tmp_path / "elsewhere"))
        found = evaluate_on(folder, Target(str(elsewhere)), resources=SHARED)
        tensors, metadata = read_run_tensors(found.folder, LOGITS, found.record)
        _, own, own_metadata = stored(folder, "novel")
        rows = {name: row for row, name in enumerate(metadata["image_names"]["novel"])}
        places = [rows[name] for name in own_metadata["image_names"]["novel"]]
        assert metadata["logit_scale"] == own_metadata["logit_scale"]
        assert metadata["zero_shot_logit_scale"] == own_metadata["zero_shot_logit_scale"]
        for kind in ("logits", "zero_shot_logits"):
            torch.testing.assert_close(tensors[f"novel/{kind}"][places], own[kind], atol=1e-3, rtol=1e-4)

    def test_zero_shot_rows_are_those_of_the_model_as_it_was_loaded(self, tuner: str) -> None:
        anchored, plain = (load_run(trained(tuner, anchor)) for anchor in (True, False))
        assert anchored.metrics["zero_shot"] == plain.metrics["zero_shot"]
        models = [stored_models(each)["zero-shot"] for each in (anchored, plain)]
        for split in ("base", "novel"):
            assert torch.equal(*(model.tests[split].logits for model in models))
            assert len({model.tests[split].logit_scale for model in models}) == 1
        assert anchored.metrics["base"] != plain.metrics["base"]


def test_the_tuned_model_is_compared_with_anchored_zero_shot_logits() -> None:
    """That is what SaLS scales to: the untuned model at the scale that tuning started from."""
    folder = trained("zero-shot")  # which learns nothing: its logits are those of the anchored model
    models = stored_models(load_run(folder))
    compared = models["tuned"].tests["novel"].zero_shot_logits
    assert compared is not None
    torch.testing.assert_close(compared, models["tuned"].tests["novel"].logits)
    assert models["tuned"].tests["novel"].logit_scale == load_run(folder).record["anchor"]["logit_scale"]


def test_runs_that_share_a_backbone_do_not_notice(tmp_path: Path) -> None:
    alone = run(config(anchor=False), tmp_path / "alone", resources=Resources()).folder
    resources = Resources()
    run(config(), tmp_path / "both", resources=resources)
    after = run(config(anchor=False), tmp_path / "both", resources=resources).folder
    assert resources.backbone("pocket").fixed_scale is None
    for name in (PROMPTS, LOGITS):
        assert (after / name).read_bytes() == (alone / name).read_bytes()
    assert "logit_scale" not in read_tensor_file(alone / PROMPTS)[1]
    assert "zero_shot_logit_scale" not in read_tensor_file(alone / LOGITS)[1]


def test_a_stopped_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int, note: str) -> None:
        if (what, done) == ("training", 1):
            raise KeyboardInterrupt

    whole = run(config(), tmp_path / "whole", resources=SHARED)
    with pytest.raises(KeyboardInterrupt):
        run(config(), tmp_path / "stopped", resources=Resources(), progress=stop)
    continued = run(config(), tmp_path / "stopped", resources=Resources())
    assert continued.record["resumed_after_epoch"] == 1
    assert continued.record["anchor"] == whole.record["anchor"]
    for name in (PROMPTS, LOGITS):
        assert (continued.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_identity(tmp_path: Path) -> None:
    """An anchored run is another run; one without has the fingerprint of before there was the setting."""
    plain, anchored = (plan(config(anchor=anchor), resources=SHARED) for anchor in (False, True))
    assert plain.fingerprint != anchored.fingerprint
    settings = {"tuner": "coop", "options": {"context": 2}, "shots": 4, "views": 2, "epochs": 1, "batch_size": 8}
    settings |= {"backbone": str(samples.backbone()), "data": str(samples.pictures())}
    folder = run(build_config(**settings), tmp_path, resources=SHARED).folder
    samples.edit_record(folder, lambda record: record["config"].pop("anchor"))
    found = find_finished(settings, tmp_path)
    assert found is not None
    assert found.folder == folder
    assert find_finished({**settings, "anchor": True}, tmp_path) is None


def test_prompts_without_their_scale_are_damaged(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained(), tmp_path / "run"))
    prompts, metadata = read_tensor_file(folder / PROMPTS)
    del metadata["logit_scale"]
    (folder / PROMPTS).write_bytes(tensor_file(prompts, metadata))
    samples.edit_record(folder, lambda record: None)
    with pytest.raises(DamagedFileError, match="it has no 'logit_scale'"):
        restore(folder, resources=SHARED)


def test_a_scale_at_a_bound_is_reported(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="training images do not determine the logit scale"):
        done = run(samples.config(samples.pictures(), anchor=True, epochs=1), tmp_path)
    assert done.record["anchor"]["end"] == "lower"
    assert done.record["anchor"]["logit_scale"] == samples.SCALE / SCALE_RANGE


def test_data_without_training_images(tmp_path: Path) -> None:
    for name in samples.NAMES[:2]:
        samples.picture(tmp_path / "sketches" / "test" / name / "0.png", seed=1)
    plain = samples.config(tmp_path / "sketches", tuner="zero-shot", protocol="few-shot", shots=None)
    assert plan(plain).dataset == "sketches"
    with pytest.raises(DataError, match="has no training images to fit the anchor on"):
        plan(replace(plain, anchor=True))


def test_the_table_says_which_scale_a_row_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sweep, where it is an axis like others."""
    axes = {"anchor": [False, True]}
    file = sweeps.write(tmp_path / "tiny.yaml", axes=axes, seeds=[1], settings={"loss": "ce"})
    run_sweep(plan_sweep(read_sweep(file), tmp_path / "out"), executor=sweeps.Here(), store=False)
    table = results(tmp_path / "out")
    assert "logit_scale" not in table.metrics
    scales = {(row["anchor"], row["model"], row["logit_scale"]) for row in table.rows}
    fitted = next(scale for anchor, model, scale in scales if (anchor, model) == ("true", "tuned"))
    assert fitted != pytest.approx(samples.SCALE)
    expected = {("false", "tuned"), ("false", "zero-shot"), ("true", "zero-shot")}
    assert {key[:2] for key in scales if key[2] == pytest.approx(samples.SCALE)} == expected
    zero_shot = [row for row in table.rows if row["model"] == "zero-shot" and row["split"] == "base"]
    assert len({(row["calibrator"], row["ece"]) for row in zero_shot}) == len({row["calibrator"] for row in zero_shot})
    assert main(["results", str(tmp_path / "out")]) == 0
    assert "ce, anchored" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:the 12 training images")
@pytest.mark.parametrize("spec", ["none", "sals"])
def test_an_exported_model_has_it(spec: str, tmp_path: Path) -> None:
    done = run(samples.config(samples.pictures(), anchor=True, epochs=1), tmp_path, resources=SHARED)
    predictor = Predictor.from_run(done.folder, calibrator=spec, resources=SHARED)
    exported = OnnxPredictor(export(predictor, tmp_path / "model"))
    _, metadata = read_run_tensors(done.folder, LOGITS, done.record)
    paths = [str(samples.pictures() / name) for name in metadata["image_names"]["base"]]
    expected = create_calibrator(spec)(stored_models(done)["tuned"].tests["base"]).softmax(dim=1)
    close(exported.predict_proba(paths), expected)

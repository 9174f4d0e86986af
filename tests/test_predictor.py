"""From images to calibrated probabilities: the same as a run stored, whatever kind of image and however many."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import samples
from calprompt import pocket
from calprompt.cli import main
from calprompt.data.images import ImageFiles
from calprompt.errors import CalpromptError, ImageError, SettingError
from calprompt.evaluation.models import stored_models
from calprompt.evaluation.output import write_evaluations
from calprompt.evaluation.run_evaluation import evaluate_run
from calprompt.evaluation.settings import EvaluationSettings, create_calibrator
from calprompt.features import frozen
from calprompt.features.store import FeatureStore
from calprompt.predictor import Prediction, Predictor
from calprompt.runs.config import build_config
from calprompt.runs.execute import run
from calprompt.runs.folder import LOGITS, load_run, read_run_tensors
from calprompt.runs.resources import Resources
from tiny import LEARNED


@cache
def photos() -> Path:
    """Some pictures that the embedded model knows something about, as anybody's folder."""
    source, root = pocket.folder("photos"), samples.shared() / "own photos"
    for folder in sorted((source / "test").iterdir())[:4]:
        (root / folder.name).mkdir(parents=True)
        for picture in sorted(folder.iterdir())[:30]:
            shutil.copy(picture, root / folder.name)
    return root


OPTIONS: dict[str, dict[str, Any]] = {"proda": {"prompts": 4, "prompt_batch": 2, "context": 2}}
CALIBRATORS = ("none", "temperature", "dac", "sals", "temperature -> dac", "vector", "histogram", "isotonic")
SHARED = Resources()


@cache
def calibratable(tuner: str = "coop") -> Path:
    """A run whose validation images every calibrator can be fitted on."""
    options = {"maple": {"depth": 2}}.get(tuner, {})
    config = build_config(
        backbone="pocket", data=str(photos()), tuner=tuner, options=options, epochs=1, shots=4, views=1, warmup_epochs=1
    )
    return run(config, samples.shared() / "predicted", resources=SHARED).folder


@cache
def trained(tuner: str = "coop", protocol: str = "base-to-novel") -> Path:
    config = samples.config(
        samples.pictures(), tuner=tuner, options=OPTIONS.get(tuner, {}), epochs=2, protocol=protocol
    )
    return run(config, samples.shared() / "predicted", resources=SHARED).folder


def stored(folder: Path, split: str) -> tuple[list[str], torch.Tensor]:
    """Paths of a split's images, and the logits that the run stored of them."""
    tensors, metadata = read_run_tensors(folder, LOGITS, load_run(folder).record)
    root = samples.pictures() if "-photos-" in folder.name else photos()
    paths = [str(root / name) for name in metadata["image_names"][split]]
    return paths, tensors[f"{split}/logits"]


def close(probabilities: np.ndarray, logits: torch.Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(torch.from_numpy(probabilities), logits.double().softmax(dim=1), atol=atol, rtol=0)


@pytest.mark.parametrize("tuner", [*LEARNED, "zero-shot"])
@pytest.mark.parametrize("part", ["base", "novel"])
def test_probabilities_equal_the_stored_ones(tuner: str, part: str) -> None:
    paths, logits = stored(trained(tuner), part)
    predictor = Predictor.from_run(trained(tuner), part=part, resources=SHARED)
    close(predictor.predict_proba(paths), logits)
    assert predictor.class_names == tuple(samples.NAMES[:3] if part == "base" else samples.NAMES[3:])


@pytest.mark.parametrize("spec", CALIBRATORS)
@pytest.mark.parametrize("tuner", ["coop", "cocoop", "maple"])
def test_calibrated_probabilities_equal_evaluate(tuner: str, spec: str) -> None:
    folder = calibratable(tuner)
    model = stored_models(load_run(folder))["tuned"]
    calibrator = create_calibrator(spec)
    if calibrator.learns:
        calibrator.fit(model.val)
    for part in ("base", "novel") if calibrator.novel else ("base",):
        paths, _ = stored(folder, part)
        predictor = Predictor.from_run(folder, calibrator=spec, part=part, resources=SHARED)
        close(predictor.predict_proba(paths), calibrator(model.tests[part]))


def test_fitted_calibrators_are_read_back(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(calibratable(), tmp_path / "run"))
    settings = EvaluationSettings(("temperature", "temperature->dac"), bootstrap=0)
    evaluation = evaluate_run(folder, settings)
    write_evaluations([evaluation])
    for each in evaluation.calibrated[1:]:
        predictor = Predictor.from_run(folder, calibrator=each.calibrator, resources=SHARED)
        assert predictor.calibrator is not None
        assert predictor.calibrator.state() == each.state
    other = Path(shutil.copytree(calibratable("cocoop"), tmp_path / "other"))
    (other / "evaluation.json").write_bytes((folder / "evaluation.json").read_bytes())
    with pytest.raises(CalpromptError, match=r"evaluation\.json is of another run"):
        Predictor.from_run(other, calibrator="temperature")


def test_images_of_every_kind_are_one_image() -> None:
    paths, logits = stored(trained(), "base")
    predictor = Predictor.from_run(trained(), resources=SHARED)
    for path, row in zip(paths[:3], logits, strict=False):
        picture = Image.open(path)
        kinds: list[Any] = [path, Path(path), Path(path).read_bytes(), picture, np.asarray(picture)]
        for image in kinds:
            close(predictor.predict_proba(image), row[None])
        close(predictor.predict_proba(kinds), row.expand(len(kinds), -1))
    files = ImageFiles(samples.pictures(), tuple(str(Path(path).relative_to(samples.pictures())) for path in paths))
    close(predictor.predict_proba(files), logits)


def test_images_are_turned_as_the_run_turned_them(tmp_path: Path) -> None:
    """A phone held upright writes a picture that lies on its side, and a tag that says so."""
    root = samples.picture_folder(tmp_path / "photos")
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        tag = Image.Exif()
        tag[0x0112] = (1, 3, 6, 8)[number % 4]
        pixels = np.asarray(Image.open(path)).copy()
        pixels[: len(pixels) // 2] //= 3  # so that up and down differ
        Image.fromarray(pixels).save(path, exif=tag)
    folder = run(samples.config(root, exif=True, epochs=1), tmp_path / "runs", resources=SHARED).folder
    tensors, metadata = read_run_tensors(folder, LOGITS, load_run(folder).record)
    paths = [root / name for name in metadata["image_names"]["base"]]
    predictor = Predictor.from_run(folder, resources=SHARED)
    for images in (paths, [path.read_bytes() for path in paths], [Image.open(path) for path in paths]):
        close(predictor.predict_proba(images), tensors["base/logits"])
    predictor.upright = False
    assert not np.allclose(predictor.predict_proba(paths), tensors["base/logits"].double().softmax(dim=1), atol=1e-4)


def test_answers_name_the_class_and_the_runner_up() -> None:
    paths, logits = stored(trained(), "base")
    answers = Predictor.from_run(trained(), resources=SHARED).predict(paths)
    probabilities = logits.double().softmax(dim=1)
    for path, answer, row in zip(paths, answers, probabilities, strict=True):
        first, second, _ = row.argsort(descending=True).tolist()
        assert answer.name == path
        assert (answer.class_name, answer.runner_up) == (samples.NAMES[first], samples.NAMES[second])
        assert answer.probability == pytest.approx(float(row[first]), abs=1e-5)
        assert answer.runner_up_probability == pytest.approx(float(row[second]), abs=1e-5)


def test_a_stream_of_any_length_takes_constant_memory() -> None:
    """Ten thousand images that are made as they are asked for: no more than a few batches are ever held."""
    predictor = Predictor.from_run(trained(), resources=SHARED)
    asked, seen, ahead = 0, 0, 0

    def images(count: int) -> Iterator[np.ndarray]:
        nonlocal asked
        for number in range(count):
            asked += 1
            yield np.full((32, 32, 3), number % 251, dtype=np.uint8)

    def peak(count: int) -> int:
        nonlocal asked, seen, ahead
        asked = seen = 0
        tracemalloc.start()
        for batch in predictor.stream(images(count)):
            seen += len(batch.names)
            ahead = max(ahead, asked - seen)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    small = peak(500)
    large = peak(10_000)
    assert seen == 10_000
    assert ahead <= 64 * 4 * (torch.get_num_threads() + 1)
    assert large < 1.5 * small + 1_000_000


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    good = str(samples.pictures() / "ant" / "0.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    predictor = Predictor.from_run(trained(), resources=SHARED)
    with pytest.raises(ImageError, match=r"bad\.png \(damaged"):
        predictor.predict([good, str(tmp_path / "bad.png")])
    (batch,) = predictor.stream([good, tmp_path / "bad.png", b"", good], skip_unreadable=True)
    assert batch.names == [good, good]
    assert len(batch.probabilities) == 2
    assert list(batch.unreadable) == [str(tmp_path / "bad.png"), "image 2"]
    for wrong, message in (
        (np.zeros((4, 4, 3), dtype=np.float32), "expected uint8 pixels"),
        (np.zeros((4, 4, 7), dtype=np.uint8), r"shape \[4, 4, 7\]"),
        (np.zeros((2, 900, 3), dtype=np.uint8), "900 by 2 pixels"),
    ):
        with pytest.raises(ImageError, match=message):
            predictor.predict([wrong])
    for nothing in (7, [7]):
        with pytest.raises(SettingError, match=r"paths, bytes, PIL images or arrays|a path, bytes, a PIL image"):
            predictor.predict(nothing)  # type: ignore[arg-type]


def test_the_classes_may_be_all_of_the_runs_or_others() -> None:
    paths, logits = stored(trained(), "base")
    every = Predictor.from_run(trained(), part="all", resources=SHARED)
    assert every.class_names == samples.NAMES
    torch.testing.assert_close(next(every.stream(paths)).logits[:, :3], logits, atol=1e-4, rtol=1e-4)
    assert Predictor.from_run(trained(), class_names=["owl", "yak"], resources=SHARED).class_names == ("owl", "yak")
    shots = trained(protocol="few-shot")
    assert Predictor.from_run(shots, resources=SHARED).class_names == samples.NAMES
    with pytest.raises(SettingError, match="has no novel classes"):
        Predictor.from_run(shots, part="novel", resources=SHARED)
    with pytest.raises(SettingError, match="does not apply to others"):
        Predictor.from_run(trained(), part="novel", calibrator="vector", resources=SHARED)
    for names, message in ((["owl", "Owl"], "reads these alike"), ("owl", "must be a list"), ([], "is empty")):
        with pytest.raises(SettingError, match=message):
            Predictor.from_run(trained(), class_names=names, resources=SHARED)


def test_several_threads_may_share_a_backbone() -> None:
    """Predictors are views of one backbone: none changes what another one gives."""
    folders = [trained("coop"), trained("cocoop"), trained("maple")]
    predictors = [Predictor.from_run(folder, resources=SHARED) for folder in folders]
    assert len({id(predictor.backbone.model) for predictor in predictors}) == 1
    paths, _ = stored(folders[0], "base")
    alone = [predictor.predict_proba(paths) for predictor in predictors]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda predictor: predictor.predict_proba(paths), predictors * 3))
    for number, found in enumerate(together):
        np.testing.assert_allclose(found, alone[number % 3], atol=1e-5)


def test_a_run_opens_each_image_once(tmp_path: Path) -> None:
    """From the plan to the last logit, also with a tuner that trains on pixels and with views of every epoch."""
    opened: list[str] = []
    root = samples.picture_folder(tmp_path / "photos", each=6)
    for number in range(6):  # larger than what waits in memory until it is decoded
        samples.picture(root / "bee" / f"{number}.png", seed=number, size=(220, 200))
    assert (root / "bee" / "0.png").stat().st_size > frozen.SMALL_FILE
    watching = True

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if watching and event == "open" and str(given[0]).startswith(str(root)) and str(given[0]).endswith(".png"):
            opened.append(str(given[0]))

    sys.addaudithook(watch)
    try:
        for tuner in ("coop", "maple", "promptsrc"):
            opened.clear()
            config = samples.config(root, tuner=tuner, options={}, epochs=3, views=None)
            run(config, tmp_path / tuner, store=FeatureStore(tmp_path / "store"))
            assert len(opened) == len(set(opened)) > 0, tuner
    finally:
        watching = False


class TestCommand:
    """`calprompt predict`."""

    def lines(self, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
        assert main(["predict", str(trained()), *words, "--quiet"]) == 0
        return capsys.readouterr().out.splitlines()

    def test_table(self, capsys: pytest.CaptureFixture[str]) -> None:
        paths, _ = stored(trained(), "base")
        printed = self.lines(capsys, paths[0], "--calibrator", "none")
        assert printed[0].split() == ["image", "class", "probability", "runner-up"]
        assert Path(paths[0]).name in " ".join(printed)
        assert "3 classes: ant, bee, cat; probabilities not calibrated" in printed

    def test_json_lines_and_csv_have_the_same_numbers(self, capsys: pytest.CaptureFixture[str]) -> None:
        folder = str(samples.pictures() / "ant")
        objects = [json.loads(line) for line in self.lines(capsys, folder, "--json")]
        table = list(csv.DictReader(io.StringIO("\n".join(self.lines(capsys, folder, "--csv")))))
        assert len(objects) == len(table) == 10
        assert set(objects[0]) == set(table[0]) == set(Prediction.__dataclass_fields__)
        for one, two in zip(objects, table, strict=True):
            assert float(two["probability"]) == one["probability"]
            assert two["class_name"] == one["class_name"]

    def test_invalid_input(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "bad.png").write_bytes(b"text")
        good = str(samples.pictures() / "ant" / "0.png")
        for words, message in (
            (["nowhere.jpg"], "there is no image nowhere.jpg"),
            ([str(tmp_path / "empty")], "has no images"),
            ([good, str(tmp_path / "bad.png")], "leave out with --skip-bad"),
            ([good, "--calibrator", "temprature"], "Did you mean 'temperature'"),
            ([good, "--part", "novel", "--calibrator", "vector"], "does not apply to others"),
        ):
            assert main(["predict", str(trained()), *words, "--quiet"]) == 2
            assert message in capsys.readouterr().err
        assert self.lines(capsys, good, str(tmp_path / "bad.png"), "--skip-bad", "--json")

"""A training's checkpoints and log: what is half-written counts for nothing, and the best weights stay."""

import json
import math
from pathlib import Path

import pytest

from toolformer_ops.errors import ModelError
from toolformer_ops.finetuning.checkpoints import WHOLE, Checkpoints
from toolformer_ops.finetuning.training_log import DevelopmentScore, TrainingLog, append_line, read_lines


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path, "model-1")


def _write(checkpoints: Checkpoints, step: int) -> Path:
    path = checkpoints.path(step)
    path.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "config.json", "trainer_state.json"):
        (path / name).write_text(f"{name} of step {step}")
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_checkpoint_counts_once_it_is_concluded(checkpoints):
    _write(checkpoints, 100)
    assert checkpoints.last_step() is None
    checkpoints.conclude(100, None)
    assert checkpoints.last_step() == 100
    _write(checkpoints, 200)
    assert checkpoints.last_step() == 100  # a kill in mid-write leaves the one before
    checkpoints.forget_broken()
    assert _names(checkpoints.folder) == ["checkpoint-100"]


def test_checkpoint_whose_files_are_not_those_it_lists_or_of_another_training_is_none(checkpoints):
    for file, content in (
        ("optimizer.pt", "opt"),
        ("optimizer.pt", ""),
        ("rng_state_1.pth", "more"),
        (WHOLE, '{"a'),
    ):
        path = _write(checkpoints, 100)
        checkpoints.conclude(100, None)
        assert Checkpoints(checkpoints.folder, "model-2").last_step() is None
        assert checkpoints.last_step() == 100
        (path / file).write_text(content) if content else (path / file).unlink()
        assert checkpoints.last_step() is None
        checkpoints.forget_broken()
        assert _names(checkpoints.folder) == []


def test_beside_the_last_whole_checkpoint_the_best_weights_stay(checkpoints):
    for step, best in ((100, 100), (200, 200), (300, 200)):
        _write(checkpoints, step)
        checkpoints.conclude(step, best)
    assert _names(checkpoints.folder) == ["best-200", "checkpoint-300"]
    best = checkpoints.weights(200)
    assert _names(best) == ["config.json", "model.safetensors"]
    assert (best / "model.safetensors").read_text() == "model.safetensors of step 200"
    assert checkpoints.weights(None) == checkpoints.path(300)


def test_best_weights_that_a_kill_left_half_written_are_written_anew(checkpoints):
    for name in ("best-100", "best-100.partial"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.safetensors").write_text("half")
    _write(checkpoints, 100)
    checkpoints.conclude(100, 100)
    assert _names(checkpoints.folder) == ["best-100", "checkpoint-100"]
    assert (checkpoints.weights(100) / "model.safetensors").read_text() == "model.safetensors of step 100"


@pytest.fixture
def log(tmp_path):
    log = TrainingLog(tmp_path)
    for step in range(1, 8):
        append_line(log.training, {"step": step, "loss": float(step), "seconds": step / 2})
    return log


def test_lines_after_the_checkpoint_are_forgotten_with_one_that_was_cut_off(log):
    append_line(log.development, {"step": 10, "loss": 1.0, "perplexity": 3.0})
    with log.training.open("a") as file:
        file.write('{"step": 8, "lo')
    log.forget_after(5)
    assert [line["step"] for line in read_lines(log.training)] == [1, 2, 3, 4, 5]
    assert log.training.read_text().endswith(json.dumps({"step": 5, "loss": 5.0, "seconds": 2.5}) + "\n")
    assert read_lines(log.development) == []
    assert log.seconds() == 2.5
    log.forget_after(0)
    assert log.seconds() == 0.0


def test_the_best_step_is_the_first_with_the_lowest_perplexity(log):
    assert log.best() is None
    for step, value in enumerate((math.nan, 3.0, 2.0, 2.5, 2.0)):
        append_line(log.development, {"step": step, "loss": 1.0, "perplexity": value})
        assert (log.best() is None) == (step == 0)
    assert log.best() == DevelopmentScore(2, 2.0)


def test_training_loss_is_the_mean_of_the_last_five_lines(log, tmp_path):
    assert log.training_loss() == (3 + 4 + 5 + 6 + 7) / 5
    append_line(log.training, {"step": 8, "loss": math.nan, "seconds": 4.0})
    for without_loss in (log, TrainingLog(tmp_path / "none")):
        with pytest.raises(ModelError, match="expected a finite training loss"):
            without_loss.training_loss()

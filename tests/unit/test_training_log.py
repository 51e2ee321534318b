"""The files of a training's log: no step twice, the first best step, the mean of the last losses."""

import json
import math
from pathlib import Path

import pytest

from toolformer_ops.errors import ModelError
from toolformer_ops.finetuning.training_log import DevelopmentScore, TrainingLog, append_line, read_lines


@pytest.fixture
def log(tmp_path: Path) -> TrainingLog:
    log = TrainingLog(tmp_path)
    for step in range(1, 8):
        append_line(log.training, {"step": step, "loss": float(step), "seconds": step / 2})
    return log


def test_lines_after_the_checkpoint_are_forgotten_and_one_that_was_cut_off(log: TrainingLog) -> None:
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


def test_best_step_has_the_lowest_perplexity_and_is_the_first_of_equal_ones(log: TrainingLog) -> None:
    assert log.best() is None
    for step, value in enumerate((math.nan, 3.0, 2.0, 2.5, 2.0)):
        append_line(log.development, {"step": step, "loss": 1.0, "perplexity": value})
        assert (log.best() is None) == (step == 0)
    assert log.best() == DevelopmentScore(2, 2.0)


def test_training_loss_is_the_mean_of_the_last_five_lines(log: TrainingLog, tmp_path: Path) -> None:
    assert log.training_loss() == (3 + 4 + 5 + 6 + 7) / 5
    append_line(log.training, {"step": 8, "loss": math.nan, "seconds": 4.0})
    for without_loss in (log, TrainingLog(tmp_path / "none")):
        with pytest.raises(ModelError, match="expected a finite training loss"):
            without_loss.training_loss()

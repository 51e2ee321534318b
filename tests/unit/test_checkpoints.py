"""Checkpoints: a half-written one is none, an older one goes only when the next is whole, and the best weights stay."""

from pathlib import Path

import pytest

from toolformer_ops.finetuning.checkpoints import WHOLE, Checkpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, "model-1")


def _write(checkpoints: Checkpoints, step: int) -> Path:
    path = checkpoints.path(step)
    path.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "config.json", "trainer_state.json"):
        (path / name).write_text(f"{name} of step {step}")
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_checkpoint_counts_once_it_is_concluded(checkpoints: Checkpoints) -> None:
    _write(checkpoints, 100)
    assert checkpoints.last_step() is None
    checkpoints.conclude(100, None)
    assert checkpoints.last_step() == 100
    _write(checkpoints, 200)
    assert checkpoints.last_step() == 100  # a kill in mid-write leaves the one before
    checkpoints.forget_broken()
    assert _names(checkpoints.folder) == ["checkpoint-100"]


def test_checkpoint_whose_files_are_not_those_it_lists_or_of_another_training_is_none(
    checkpoints: Checkpoints,
) -> None:
    for file, content in (("optimizer.pt", "opt"), ("optimizer.pt", ""), ("rng_state_1.pth", "more"), (WHOLE, '{"a')):
        path = _write(checkpoints, 100)
        checkpoints.conclude(100, None)
        assert Checkpoints(checkpoints.folder, "model-2").last_step() is None
        assert checkpoints.last_step() == 100
        (path / file).write_text(content) if content else (path / file).unlink()
        assert checkpoints.last_step() is None
        checkpoints.forget_broken()
        assert _names(checkpoints.folder) == []


def test_last_whole_checkpoint_and_the_best_weights_stay(checkpoints: Checkpoints) -> None:
    for step, best in ((100, 100), (200, 200), (300, 200)):
        _write(checkpoints, step)
        checkpoints.conclude(step, best)
    assert _names(checkpoints.folder) == ["best-200", "checkpoint-300"]
    best = checkpoints.weights(200)
    assert _names(best) == ["config.json", "model.safetensors"]
    assert (best / "model.safetensors").read_text() == "model.safetensors of step 200"
    assert checkpoints.weights(None) == checkpoints.path(300)


def test_best_weights_that_a_kill_left_half_written_are_written_anew(checkpoints: Checkpoints) -> None:
    for name in ("best-100", "best-100.partial"):
        (checkpoints.folder / name).mkdir()
        (checkpoints.folder / name / "model.safetensors").write_text("half")
    _write(checkpoints, 100)
    checkpoints.conclude(100, 100)
    assert _names(checkpoints.folder) == ["best-100", "checkpoint-100"]
    assert (checkpoints.weights(100) / "model.safetensors").read_text() == "model.safetensors of step 100"

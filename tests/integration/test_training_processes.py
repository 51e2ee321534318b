"""Several processes that train together, without a GPU: the same numbers as one, and none outlives the one that started them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.finetuning_jobs import DEV_TEXTS, largest_difference, recipe_of, write_release
from toolformer_ops.config import REPOSITORY, Settings
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.finetuning.release_training import train_on_release
from toolformer_ops.finetuning.training import TrainedModel
from toolformer_ops.finetuning.training_log import read_lines

SECONDS = 120.0
STARTER = """
import sys
from pathlib import Path
from tests.integration import test_training_processes as here
here.train(*map(Path, sys.argv[1:4]), processes=2, steps=120, saved_every=1000)
"""


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("release") / "files")


def train(
    model: Path, release_dir: Path, folder: Path, processes: int | None, steps: int = 7, saved_every: int = 3
) -> TrainedModel:
    recipe: FinetuningRecipe = recipe_of(
        finetune_steps=steps,
        finetune_eval_steps=saved_every,
        finetune_device_batch=1,
        finetune_checkpoint_steps=saved_every + 2,
    )
    settings = Settings(_env_file=None, state_dir=folder)
    return train_on_release(settings, recipe, str(model), release_dir, DEV_TEXTS, folder, processes=processes)


def test_two_processes_give_the_losses_and_weights_of_one(
    tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    """Five development documents for two processes: one batch of the last round is nobody's."""
    one = train(tiny_model_dir, release_dir, tmp_path / "one", None)
    two = train(tiny_model_dir, release_dir, tmp_path / "two", 2)
    for name, field in (("training_log", "loss"), ("training_log", "tokens"), ("development_log", "perplexity")):
        ours, theirs = (
            [(line["step"], line[field]) for line in read_lines(trained.directory / f"{name}.jsonl")]
            for trained in (one, two)
        )
        assert [step for step, _ in ours] == [step for step, _ in theirs]
        assert [value for _, value in ours] == pytest.approx([value for _, value in theirs], rel=1e-4)
    assert two.training_loss == pytest.approx(one.training_loss, abs=1e-3)
    assert largest_difference(one.directory, two.directory) < 1e-3


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them_at_a_checkpoint_and_the_next_start_goes_on(
    tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    """The death of the starting process reaches them as SIGTERM, long before any checkpoint is due."""
    folder = tmp_path / "training"
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STARTER, str(tiny_model_dir), str(release_dir), str(folder)]
    starter = subprocess.Popen(command, cwd=REPOSITORY, env=environment)
    until = time.monotonic() + SECONDS
    log = folder / "training_log.jsonl"
    while not (log.is_file() and log.read_text()) and starter.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    children = psutil.Process(starter.pid).children(recursive=True)
    starter.kill()
    starter.wait()
    _, alive = psutil.wait_procs(children, timeout=SECONDS)
    assert len(children) >= 3  # the launcher and two that train
    assert alive == []
    whole = {int(path.parent.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoints/*/whole.json")}
    assert len(whole) == 1
    assert 0 < max(whole) < 120
    trained = train(tiny_model_dir, release_dir, folder, 2, steps=120, saved_every=1000)
    steps = [line["step"] for line in read_lines(trained.directory / "training_log.jsonl")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 120

"""Training on a release without Postgres and S3: what a step computes, kills, memory, several processes, the best step."""

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import killed_training
from tests.finetuning_jobs import DEV_TEXTS, recipe_of, write_release
from tests.tiny_models import save_tiny_model
from toolformer_ops.config import REPOSITORY, STATE_DIR_VARIABLE, Settings
from toolformer_ops.errors import ModelError, TrainingError
from toolformer_ops.finetuning import release_training
from toolformer_ops.finetuning.curves import PICTURE, write_curves
from toolformer_ops.finetuning.processes import TrainingJob
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.finetuning.release_training import train_on_release
from toolformer_ops.finetuning.sequences import TokenSequences
from toolformer_ops.finetuning.trainer import ReleaseTrainer
from toolformer_ops.finetuning.training import BaseModel, TrainedModel, TrainingPlan, load_base_model
from toolformer_ops.finetuning.training_log import ProgressLines, read_lines
from toolformer_ops.release.format import read_release


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(_env_file=None, state_dir=tmp_path / "state")


@pytest.fixture(autouse=True)
def _without_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw the curves takes a quarter of a training."""
    monkeypatch.setattr(release_training, "write_curves", lambda *_: None)


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("release") / "files")


def _train(
    settings: Settings,
    model: Path,
    release_dir: Path,
    folder: Path,
    recipe: FinetuningRecipe | None = None,
    *,
    dev_texts: tuple[str, ...] = (),
) -> TrainedModel:
    return train_on_release(settings, recipe or recipe_of(), str(model), release_dir, dev_texts, folder)


def _log(trained: TrainedModel) -> list[dict[str, float]]:
    return read_lines(trained.directory / "training_log.jsonl")


def _losses(trained: TrainedModel) -> list[float]:
    return [line["loss"] for line in _log(trained)]


def _weights(trained: TrainedModel) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(trained.directory / "model.safetensors")


def _largest_difference(one: TrainedModel, other: TrainedModel) -> float:
    ours, theirs = _weights(one), _weights(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def _sequences(base: BaseModel, release_dir: Path, length: int = 48) -> list[list[int]]:
    sequences = TokenSequences.of(read_release(release_dir), base.tokenization, length)
    return [sequences[index] for index in range(len(sequences))]


def _nats(network: Any, ids: list[int]) -> float:
    """By the definition: negative log-likelihood of all tokens but the first."""
    row = torch.tensor([ids])
    with torch.no_grad():
        log_probs = network(row).logits.log_softmax(-1)[0, :-1]  # (position, vocabulary)
    return -float(log_probs.gather(1, row[0, 1:, None]).sum())


# What a step computes


def test_splitting_a_batch_changes_neither_losses_nor_weights(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    whole, split = (
        _train(
            settings,
            tiny_model_dir,
            release_dir,
            tmp_path / f"{size}",
            recipe_of(finetune_steps=3, finetune_device_batch=size),
        )
        for size in (4, 1)
    )
    assert _losses(split) == pytest.approx(_losses(whole), abs=1e-4)
    assert [line["tokens"] for line in _log(split)] == [line["tokens"] for line in _log(whole)]
    assert _largest_difference(whole, split) < 2e-3  # Adam turns rounding of near-zero gradients into small steps


def test_first_loss_is_the_mean_over_the_tokens_of_the_text_alone(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    base = load_base_model(settings, str(tiny_model_dir), None)
    rows = _sequences(base, release_dir)
    recipe = recipe_of(
        finetune_steps=1, finetune_batch=len(rows), finetune_device_batch=3
    )  # one step sees each sequence once
    [line] = _log(_train(settings, tiny_model_dir, release_dir, tmp_path, recipe))
    expected = sum(_nats(base.network, ids) for ids in rows) / sum(len(ids) - 1 for ids in rows)
    assert line["loss"] == pytest.approx(expected, abs=2e-4)
    assert line["tokens"] == sum(map(len, rows))


def test_baseline_is_trained_on_the_plain_texts(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    base = load_base_model(settings, str(tiny_model_dir), None)
    plain = TokenSequences.of(read_release(release_dir), base.tokenization, 48, without_calls=True)
    rows = [plain[index] for index in range(len(plain))]
    assert "[Calculator" not in "".join(base.tokenization.decode(ids) for ids in rows)
    recipe = recipe_of(finetune_steps=1, finetune_batch=len(rows), without_calls=True)
    [line] = _log(_train(settings, tiny_model_dir, release_dir, tmp_path, recipe))
    expected = sum(_nats(base.network, ids) for ids in rows) / sum(len(ids) - 1 for ids in rows)
    assert line["loss"] == pytest.approx(expected, abs=2e-4)


def test_learning_rate_rises_over_the_first_tenth_and_then_stays(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(finetune_steps=20, finetune_batch=1)
    rates = [line["learning_rate"] for line in _log(_train(settings, tiny_model_dir, release_dir, tmp_path, recipe))]
    assert rates[:3] == pytest.approx([0.0, 5e-4, 1e-3])  # 2 warm-up steps, each logged with the rate that it used
    assert rates[3:] == [1e-3] * 17


def test_same_seed_gives_the_same_losses_and_another_seed_others(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    first, again, other = (
        _losses(
            _train(
                settings,
                tiny_model_dir,
                release_dir,
                tmp_path / name,
                recipe_of(finetune_steps=3, finetune_batch=2, seed=seed),
            )
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_diverged_training_is_an_error_and_not_a_model(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(*arguments: Any, **options: Any) -> BaseModel:
        base = load_base_model(*arguments, **options)
        base.network.lm_head.weight.data[0, 0] = math.nan
        return base

    monkeypatch.setattr(release_training, "load_base_model", poisoned)
    with pytest.raises(TrainingError, match="expected a finite training loss"):
        _train(settings, tiny_model_dir, release_dir, tmp_path)
    assert not (tmp_path / "model").exists()


def test_vocabulary_that_cannot_write_the_markers_is_refused_before_training(
    settings: Settings, release_dir: Path, tmp_path: Path
) -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import GPT2Config, PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz0123456789 []()-+.,:\n"  # no ">"
    vocabulary = {"<unk>": 0, "<|endoftext|>": 1} | {letter: number for number, letter in enumerate(letters, 2)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>", unk_token="<unk>")
    config = GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=64, vocab_size=len(vocabulary))
    model = save_tiny_model(tmp_path / "model", config, tokenizer)
    with pytest.raises(ModelError, match=r"expected a vocabulary that can write ' ->' .* Nothing was trained"):
        _train(settings, model, release_dir, tmp_path / "training")
    assert not (tmp_path / "training" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changes", "processes", "during"),
    [
        ({}, "1", 6),
        ({}, "3", 2),
        ({"threads": 4}, "3", 4),
        ({"runner": "kubernetes"}, "1", 1),
    ],
)
def test_a_training_has_all_cores_of_its_machine_and_in_a_pod_those_of_the_settings(
    settings: Settings,
    tiny_model_dir: Path,
    release_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    processes: str,
    during: int,
) -> None:
    settings = settings.model_copy(update=changes)
    threads: list[int] = []

    def watched(*_: object) -> None:
        threads.append(torch.get_num_threads())

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(release_training, "train", watched)
    monkeypatch.setattr(
        release_training, "training_arguments", lambda *_: None
    )  # they would wait for the other processes
    monkeypatch.setenv("WORLD_SIZE", processes)
    plan = TrainingPlan(device_batch=1)
    job = TrainingJob(recipe_of(), str(tiny_model_dir), release_dir, (), tmp_path, plan)
    release_training.train_job(settings, job)
    assert [*threads, torch.get_num_threads()] == [during, settings.threads]


# Kills


KILLS = {
    "line-11": "checkpoint-8",
    "line-7": "checkpoint-6",
    "write-8": "checkpoint-6",
    "whole-6": "checkpoint-4",
    "told-9": "checkpoint-10",  # SIGTERM: the step at work is done, and saved
}
"""When a training is killed, and which checkpoint is whole then."""


@pytest.fixture(scope="module")
def killed(tiny_gpt2_dir: Path, release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one folder for each of `KILLS`, as the killed training left it."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.killed_training", str(tiny_gpt2_dir), str(release_dir), str(folder), *KILLS]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", STATE_DIR_VARIABLE: str(folder / "state")}
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tiny_gpt2_dir: Path, release_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """The same training without a kill."""
    folder = tmp_path_factory.mktemp("undisturbed")
    settings = Settings(_env_file=None, state_dir=folder / "state")
    recipe = recipe_of(**killed_training.CHOICES)
    return _train(settings, tiny_gpt2_dir, release_dir, folder, recipe, dev_texts=DEV_TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS)
def test_training_that_was_killed_ends_as_an_undisturbed_one(
    settings: Settings,
    tiny_gpt2_dir: Path,
    release_dir: Path,
    killed: Path,
    undisturbed: TrainedModel,
    tmp_path: Path,
    kill: str,
) -> None:
    """The model has dropout, so that the random numbers must go on, too."""
    recipe, folder = recipe_of(**killed_training.CHOICES), shutil.copytree(killed / kill, tmp_path / "training")
    assert not (folder / "model").exists()
    whole = sorted(path.parent.name for path in folder.glob("checkpoints/*/whole.json"))
    assert whole == [KILLS[kill]]

    resumed = _train(settings, tiny_gpt2_dir, release_dir, folder, recipe, dev_texts=DEV_TEXTS)
    assert _losses(resumed) == pytest.approx(_losses(undisturbed), abs=1e-5)
    assert resumed.training_loss == pytest.approx(undisturbed.training_loss, abs=1e-5)
    assert _largest_difference(resumed, undisturbed) < 1e-5
    assert [line["step"] for line in _log(resumed)] == list(range(1, 13))
    assert [line["tokens"] for line in _log(resumed)] == [line["tokens"] for line in _log(undisturbed)]
    for trained in (resumed, undisturbed):
        assert [line["step"] for line in read_lines(trained.directory / "development_log.jsonl")] == [6, 12]
    assert resumed.best == undisturbed.best


@pytest.mark.slow
def test_a_training_that_is_killed_after_its_last_step_ends_as_it_was_without_the_optimisers_state(
    settings: Settings, tiny_gpt2_dir: Path, release_dir: Path, killed: Path, undisturbed: TrainedModel, tmp_path: Path
) -> None:
    """Until then each checkpoint has it."""
    assert all((killed / kill / "checkpoints" / name / "optimizer.pt").is_file() for kill, name in KILLS.items())
    folder = shutil.copytree(undisturbed.directory.parent, tmp_path / "training")
    shutil.rmtree(folder / "model")
    assert not (folder / "checkpoints" / "checkpoint-12" / "optimizer.pt").exists()
    recipe = recipe_of(**killed_training.CHOICES)
    again = _train(settings, tiny_gpt2_dir, release_dir, folder, recipe, dev_texts=DEV_TEXTS)
    assert (_losses(again), again.best) == (_losses(undisturbed), undisturbed.best)
    assert _largest_difference(again, undisturbed) == 0.0


def test_checkpoint_that_holds_code_is_not_run(
    settings: Settings, tiny_gpt2_dir: Path, release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, folder, log = recipe_of(**killed_training.CHOICES), tmp_path / "training", ProgressLines.on_log

    def stop_after_step_9(line: ProgressLines, args: Any, state: Any, *others: Any, **options: Any) -> None:
        log(line, args, state, *others, **options)
        if state.global_step == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLines, "on_log", stop_after_step_9)
        with pytest.raises(KeyboardInterrupt):
            _train(settings, tiny_gpt2_dir, release_dir, folder, recipe, dev_texts=DEV_TEXTS)
    checkpoint = folder / "checkpoints" / "checkpoint-8"
    written = checkpoint / "optimizer.pt"
    torch.save(_Evil(tmp_path / "was-run"), written)
    mark = json.loads((checkpoint / "whole.json").read_text())
    mark["files"]["optimizer.pt"] = written.stat().st_size
    (checkpoint / "whole.json").write_text(json.dumps(mark))
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        _train(settings, tiny_gpt2_dir, release_dir, folder, recipe, dev_texts=DEV_TEXTS)
    assert not (tmp_path / "was-run").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self._path,))


# Development documents


def test_development_perplexity_is_that_of_the_plain_beginnings(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(finetune_steps=1, finetune_warmup=1.0, finetune_length=16)  # the only step has rate 0
    trained = _train(settings, tiny_model_dir, release_dir, tmp_path, recipe, dev_texts=DEV_TEXTS)
    base = load_base_model(settings, str(tiny_model_dir), None)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text))[:16] for text in DEV_TEXTS]
    expected = math.exp(sum(_nats(base.network, list(ids)) for ids in rows) / sum(len(ids) - 1 for ids in rows))
    assert trained.best is not None
    assert trained.best.step == 1
    assert trained.best.perplexity == pytest.approx(expected, rel=1e-5)


def test_weights_of_the_best_step_are_kept_and_not_those_of_the_last(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    recipe = recipe_of(
        finetune_steps=9, finetune_eval_steps=2, finetune_learning_rate=0.05, finetune_checkpoint_steps=4
    )
    trained = _train(settings, tiny_model_dir, release_dir, tmp_path, recipe, dev_texts=DEV_TEXTS)
    scores = {line["step"]: line["perplexity"] for line in read_lines(trained.directory / "development_log.jsonl")}
    assert list(scores) == [2, 4, 6, 8, 9]
    assert trained.best is not None
    assert trained.best.perplexity == min(scores.values()) < scores[9] / 1.1
    base = load_base_model(settings, str(tiny_model_dir), None)
    network = AutoModelForCausalLM.from_pretrained(trained.directory)
    rows = [[*base.tokenization.start_ids, *base.tokenization.ids(text)] for text in DEV_TEXTS]
    mean = sum(_nats(network, ids) for ids in rows) / sum(len(ids) - 1 for ids in rows)
    assert math.exp(mean) == pytest.approx(trained.best.perplexity, rel=1e-4)
    assert network.config.use_cache  # as the model it started from


# Memory


def _out_of_memory_unless(monkeypatch: pytest.MonkeyPatch, fits: Callable[[ReleaseTrainer], bool]) -> None:
    step = ReleaseTrainer.training_step

    def short(self: ReleaseTrainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if not fits(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, *arguments, **options)

    monkeypatch.setattr(ReleaseTrainer, "training_step", short)


def test_out_of_memory_halves_the_device_batch_and_goes_on_from_the_checkpoint(
    settings: Settings,
    tiny_model_dir: Path,
    release_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe = recipe_of(finetune_device_batch=4, finetune_checkpoint_steps=2)
    undisturbed = _train(settings, tiny_model_dir, release_dir, tmp_path / "a", recipe)
    _out_of_memory_unless(
        monkeypatch, lambda trainer: trainer.args.per_device_train_batch_size <= 2 or trainer.state.global_step < 3
    )
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="toolformer_ops"):
        short = _train(settings, tiny_model_dir, release_dir, tmp_path / "b", recipe)
    assert "out of memory with 4 sequences at once: continuing with 2 sequences" in caplog.text
    assert caplog.text.count("step 1 of 6") == 1  # step 2 has a checkpoint
    assert _losses(short) == pytest.approx(_losses(undisturbed), abs=1e-4)


def test_activations_are_computed_twice_where_one_sequence_does_not_fit(
    settings: Settings,
    tiny_model_dir: Path,
    release_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    undisturbed = _train(settings, tiny_model_dir, release_dir, tmp_path / "a")
    _out_of_memory_unless(monkeypatch, lambda trainer: bool(trainer.model.is_activation_checkpointing))
    short = _train(settings, tiny_model_dir, release_dir, tmp_path / "b")
    assert (
        "out of memory with 1 sequences at once: continuing with 1 sequence, computing activations twice" in caplog.text
    )
    assert _losses(short) == pytest.approx(_losses(undisturbed), abs=1e-4)


def test_sequence_that_does_not_fit_at_all_is_an_error_with_its_remedy(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _out_of_memory_unless(monkeypatch, lambda _: False)
    with pytest.raises(ModelError, match="Not even one sequence of 48 tokens fits"):
        _train(settings, tiny_model_dir, release_dir, tmp_path)


# Curves


def test_curves_hold_every_step_once(
    settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(release_training, "write_curves", write_curves)
    recipe = recipe_of(finetune_eval_steps=2)
    trained = _train(settings, tiny_model_dir, release_dir, tmp_path, recipe, dev_texts=DEV_TEXTS)
    assert (trained.directory / PICTURE).read_bytes().startswith(b"\x89PNG")
    events = EventAccumulator(str(trained.directory / "tensorboard"))
    events.Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("train/loss")] == [
        (line["step"], line["loss"]) for line in _log(trained)
    ]
    assert [event.step for event in events.Scalars("development/perplexity")] == [2, 4, 6]

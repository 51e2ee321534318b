"""Training on a release without Postgres and S3: what a step computes, kills, memory, several processes, the best step."""

import functools
import json
import logging
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import killed_training
from tests.finetuning_jobs import DEV_TEXTS, largest_difference, recipe_of, write_release
from tests.tiny_models import save_tiny_model
from toolformer_ops.config import REPOSITORY, STATE_DIR_VARIABLE, Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.finetuning import release_training
from toolformer_ops.finetuning.curves import PICTURE, write_curves
from toolformer_ops.finetuning.processes import TrainingJob
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


Train = Callable[..., TrainedModel]


@pytest.fixture
def train(settings: Settings, tiny_model_dir: Path, release_dir: Path, tmp_path: Path) -> Train:
    """Trains in the folder `name` by the recipe with these changes."""

    def start(
        name: str = "training", *, model: Path = tiny_model_dir, dev_texts: tuple[str, ...] = (), **changes: Any
    ) -> TrainedModel:
        recipe = recipe_of(**changes)
        return train_on_release(settings, recipe, str(model), release_dir, dev_texts, tmp_path / name)

    return start


@pytest.fixture
def train_killed(train: Train, tiny_gpt2_dir: Path) -> Train:
    """As `train`, what `tests/killed_training.py` trains."""
    return functools.partial(train, model=tiny_gpt2_dir, dev_texts=DEV_TEXTS, **killed_training.CHOICES)


@pytest.fixture
def base(settings: Settings, tiny_model_dir: Path) -> BaseModel:
    return load_base_model(settings, str(tiny_model_dir), None)


def _log(trained: TrainedModel) -> list[dict[str, float]]:
    return read_lines(trained.directory / "training_log.jsonl")


def _losses(trained: TrainedModel) -> list[float]:
    return [line["loss"] for line in _log(trained)]


def _nats(network: Any, ids: list[int]) -> float:
    """By the definition: negative log-likelihood of all tokens but the first."""
    row = torch.tensor([ids])
    with torch.no_grad():
        log_probs = network(row).logits.log_softmax(-1)[0, :-1]  # (position, vocabulary)
    return -float(log_probs.gather(1, row[0, 1:, None]).sum())


def _mean_nats(network: Any, rows: Sequence[Sequence[int]]) -> float:
    return sum(_nats(network, list(ids)) for ids in rows) / sum(len(ids) - 1 for ids in rows)


# What a step computes


def test_splitting_a_batch_changes_neither_losses_nor_weights(train: Train) -> None:
    whole, split = (train(f"{size}", finetune_steps=3, finetune_device_batch=size) for size in (4, 1))
    assert _losses(split) == pytest.approx(_losses(whole), abs=1e-4)
    assert [line["tokens"] for line in _log(split)] == [line["tokens"] for line in _log(whole)]
    assert (
        largest_difference(whole.directory, split.directory) < 2e-3
    )  # Adam turns rounding of near-zero gradients into small steps


@pytest.mark.parametrize("without_calls", [False, True])
def test_first_loss_is_the_mean_over_the_tokens_of_the_text_alone_and_the_baselines_text_is_plain(
    train: Train, base: BaseModel, release_dir: Path, without_calls: bool
) -> None:
    sequences = TokenSequences.of(read_release(release_dir), base.tokenization, 48, without_calls=without_calls)
    rows = [sequences[index]["input_ids"] for index in range(len(sequences))]
    assert ("[Calculator" in "".join(base.tokenization.decode(ids) for ids in rows)) is not without_calls
    # One step sees each sequence once.
    batch = {"finetune_batch": len(rows), "finetune_device_batch": 3}
    [line] = _log(train(finetune_steps=1, without_calls=without_calls, **batch))
    assert line["loss"] == pytest.approx(_mean_nats(base.network, rows), abs=2e-4)
    assert line["tokens"] == sum(map(len, rows))


def test_learning_rate_rises_over_the_first_tenth_and_then_stays(train: Train) -> None:
    rates = [line["learning_rate"] for line in _log(train(finetune_steps=20, finetune_batch=1))]
    assert rates[:3] == pytest.approx([0.0, 5e-4, 1e-3])  # 2 warm-up steps, each logged with the rate that it used
    assert rates[3:] == [1e-3] * 17


def test_same_seed_gives_the_same_losses_and_another_seed_others(train: Train) -> None:
    first, again, other = (
        _losses(train(name, finetune_steps=3, finetune_batch=2, seed=seed))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_diverged_training_is_an_error_and_not_a_model(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(*arguments: Any, **options: Any) -> BaseModel:
        base = load_base_model(*arguments, **options)
        base.network.lm_head.weight.data[0, 0] = math.nan
        return base

    monkeypatch.setattr(release_training, "load_base_model", poisoned)
    with pytest.raises(ModelError, match="expected a finite training loss"):
        train()
    assert not (tmp_path / "training" / "model").exists()


def test_vocabulary_that_cannot_write_the_markers_is_refused_before_training(train: Train, tmp_path: Path) -> None:
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
        train(model=model)
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
    # They would wait for the other processes.
    monkeypatch.setattr(release_training, "training_arguments", lambda *_: None)
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release_training, "write_curves", lambda *_: None)
        return train_on_release(settings, recipe, str(tiny_gpt2_dir), release_dir, DEV_TEXTS, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kill", KILLS)
def test_training_that_was_killed_ends_as_an_undisturbed_one(
    train_killed: Train, killed: Path, undisturbed: TrainedModel, tmp_path: Path, kill: str
) -> None:
    """The model has dropout, so that the random numbers must go on, too."""
    folder = shutil.copytree(killed / kill, tmp_path / "training")
    assert not (folder / "model").exists()
    assert [path.parent.name for path in folder.glob("checkpoints/*/whole.json")] == [KILLS[kill]]
    assert (folder / "checkpoints" / KILLS[kill] / "optimizer.pt").is_file()

    resumed = train_killed()
    assert _losses(resumed) == pytest.approx(_losses(undisturbed), abs=1e-5)
    assert resumed.training_loss == pytest.approx(undisturbed.training_loss, abs=1e-5)
    assert largest_difference(resumed.directory, undisturbed.directory) < 1e-5
    assert [line["step"] for line in _log(resumed)] == list(range(1, 13))
    assert [line["tokens"] for line in _log(resumed)] == [line["tokens"] for line in _log(undisturbed)]
    for trained in (resumed, undisturbed):
        assert [line["step"] for line in read_lines(trained.directory / "development_log.jsonl")] == [6, 12]
    assert resumed.best == undisturbed.best


@pytest.mark.slow
def test_a_training_that_is_killed_after_its_last_step_ends_as_it_was_without_the_optimisers_state(
    train_killed: Train, undisturbed: TrainedModel, tmp_path: Path
) -> None:
    folder = shutil.copytree(undisturbed.directory.parent, tmp_path / "training")
    shutil.rmtree(folder / "model")
    assert not (folder / "checkpoints" / "checkpoint-12" / "optimizer.pt").exists()
    again = train_killed()
    assert (_losses(again), again.best) == (_losses(undisturbed), undisturbed.best)
    assert largest_difference(again.directory, undisturbed.directory) == 0.0


def test_checkpoint_that_holds_code_is_not_run(
    train_killed: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ProgressLines.on_log

    def stop_after_step_9(line: ProgressLines, args: Any, state: Any, *others: Any, **options: Any) -> None:
        log(line, args, state, *others, **options)
        if state.global_step == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLines, "on_log", stop_after_step_9)
        with pytest.raises(KeyboardInterrupt):
            train_killed()
    checkpoint = tmp_path / "training" / "checkpoints" / "checkpoint-8"
    written = checkpoint / "optimizer.pt"
    torch.save(_Evil(tmp_path / "was-run"), written)
    mark = json.loads((checkpoint / "whole.json").read_text())
    mark["files"]["optimizer.pt"] = written.stat().st_size
    (checkpoint / "whole.json").write_text(json.dumps(mark))
    with pytest.raises(Exception, match=r"(?i)weights.only"):
        train_killed()
    assert not (tmp_path / "was-run").exists()


class _Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self._path,))


# Development documents


def test_development_perplexity_is_that_of_the_plain_beginnings(train: Train, base: BaseModel) -> None:
    # The only step has rate 0.
    trained = train(finetune_steps=1, finetune_warmup=1.0, finetune_length=16, dev_texts=DEV_TEXTS)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text))[:16] for text in DEV_TEXTS]
    assert trained.best is not None
    assert trained.best.step == 1
    assert trained.best.perplexity == pytest.approx(math.exp(_mean_nats(base.network, rows)), rel=1e-5)


def test_weights_of_the_best_step_are_kept_and_not_those_of_the_last(train: Train, base: BaseModel) -> None:
    from transformers import AutoModelForCausalLM

    trained = train(
        finetune_steps=9, finetune_eval_steps=2, finetune_learning_rate=0.05, finetune_checkpoint_steps=4,
        dev_texts=DEV_TEXTS,
    )  # fmt: skip
    scores = {line["step"]: line["perplexity"] for line in read_lines(trained.directory / "development_log.jsonl")}
    assert list(scores) == [2, 4, 6, 8, 9]
    assert trained.best is not None
    assert trained.best.perplexity == min(scores.values()) < scores[9] / 1.1
    network = AutoModelForCausalLM.from_pretrained(trained.directory)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text)) for text in DEV_TEXTS]
    assert math.exp(_mean_nats(network, rows)) == pytest.approx(trained.best.perplexity, rel=1e-4)
    assert network.config.use_cache  # as the model it started from


# Memory


HALVED = "out of memory with 4 sequences at once: continuing with 2 sequences"
TWICE = "out of memory with 1 sequences at once: continuing with 1 sequence, computing activations twice"


def _memory_for(monkeypatch: pytest.MonkeyPatch, fits: Callable[[ReleaseTrainer], bool]) -> None:
    """A step that does not fit is out of memory."""
    step = ReleaseTrainer.training_step

    def short(self: ReleaseTrainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if not fits(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, *arguments, **options)

    monkeypatch.setattr(ReleaseTrainer, "training_step", short)


def test_out_of_memory_makes_a_training_smaller_and_not_another_one(
    train: Train, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = train("undisturbed")

    def shortened(fits: Callable[[ReleaseTrainer], bool], says: str, **changes: int) -> None:
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.INFO, logger="toolformer_ops"):
            _memory_for(patch, fits)
            short = train(str(len(changes)), **changes)
        assert says in caplog.text
        assert caplog.text.count("step 1 of 6") == 1
        assert _losses(short) == pytest.approx(_losses(undisturbed), abs=1e-4)

    shortened(lambda trainer: bool(trainer.model.is_activation_checkpointing), TWICE)
    shortened(  # it goes on from the checkpoint of step 2
        lambda trainer: trainer.args.per_device_train_batch_size <= 2 or trainer.state.global_step < 3,
        HALVED,
        finetune_device_batch=4,
        finetune_checkpoint_steps=2,
    )


def test_sequence_that_does_not_fit_at_all_is_an_error_with_its_remedy(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    _memory_for(monkeypatch, lambda _: False)
    with pytest.raises(ModelError, match="Not even one sequence of 48 tokens fits"):
        train()


# Curves


def test_curves_hold_every_step_once(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(release_training, "write_curves", write_curves)
    trained = train(finetune_eval_steps=2, dev_texts=DEV_TEXTS)
    assert (trained.directory / PICTURE).read_bytes().startswith(b"\x89PNG")
    events = EventAccumulator(str(trained.directory / "tensorboard"))
    events.Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("train/loss")] == [
        (line["step"], line["loss"]) for line in _log(trained)
    ]
    assert [event.step for event in events.Scalars("development/perplexity")] == [2, 4, 6]

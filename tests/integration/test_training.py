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
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import killed_training
from tests.finetuning_jobs import DEV_TEXTS, largest_difference, recipe_of, write_release
from toolformer_ops.config import REPOSITORY, STATE_DIR_VARIABLE, Settings
from toolformer_ops.errors import ModelError
from toolformer_ops.finetuning import processes, release_training, training
from toolformer_ops.finetuning.base_model import load_base_model
from toolformer_ops.finetuning.recipe import PassSize, TrainingJob
from toolformer_ops.finetuning.release_training import train_on_release
from toolformer_ops.finetuning.sequences import TokenSequences
from toolformer_ops.finetuning.trainer import ReleaseTrainer
from toolformer_ops.finetuning.training import TrainedModel
from toolformer_ops.finetuning.training_log import PICTURE, ProgressLines, read_lines, write_curves
from toolformer_ops.language_model.throughput import Cards
from toolformer_ops.language_model.tokenization import Tokenization
from toolformer_ops.release.format import read_release


@pytest.fixture
def settings(tmp_path):
    return Settings(_env_file=None, state_dir=tmp_path / "state")


@pytest.fixture(autouse=True)
def _without_a_picture(monkeypatch):
    """To draw the curves takes a quarter of a training."""
    monkeypatch.setattr(release_training, "write_curves", lambda *_: None)


@pytest.fixture(scope="module")
def release_dir(tmp_path_factory):
    return write_release(tmp_path_factory.mktemp("release") / "files")


LORA = {"finetune_method": "lora", "finetune_lora_rank": 4, "finetune_learning_rate": 1e-2}
Train = Callable[..., TrainedModel]


@pytest.fixture
def train(settings, tiny_model_dir, release_dir, tmp_path):
    """Trains in the folder `name` by the recipe with these changes."""

    def start(
        name: str = "training",
        *,
        model: Path = tiny_model_dir,
        dev_texts: tuple[str, ...] = (),
        **changes: Any,
    ) -> TrainedModel:
        job = TrainingJob(recipe_of(**changes), str(model), release_dir, dev_texts, tmp_path / name)
        return train_on_release(settings, job)

    return start


@pytest.fixture
def train_killed(train, tiny_gpt2_dir):
    """As `train`, what `tests/killed_training.py` trains."""
    return functools.partial(train, model=tiny_gpt2_dir, dev_texts=DEV_TEXTS, **killed_training.CHOICES)


@pytest.fixture
def base(settings, tiny_model_dir):
    return load_base_model(settings, str(tiny_model_dir), None)


TrainedTwice = dict[str, tuple[TrainedModel, TrainedModel]]


@pytest.fixture(scope="module")
def trained_twice(tiny_model_dir, release_dir, tmp_path_factory):
    """What one process and what two processes make of each job; the two train all jobs in one launch."""
    folder = tmp_path_factory.mktemp("trained-twice")
    steps = {"finetune_eval_steps": 3, "finetune_device_batch": 1, "finetune_checkpoint_steps": 5}
    # Five development documents for two processes: the last round has a batch for one of them alone.
    first = TrainingJob(
        recipe_of(finetune_steps=7, **steps), str(tiny_model_dir), release_dir, DEV_TEXTS, folder
    )
    adapters = replace(first, recipe=recipe_of(**LORA, finetune_steps=3), dev_texts=())
    # Texts differ in length: a pass of 40 tokens holds one or two.
    unequal = replace(adapters, recipe=recipe_of(finetune_steps=3), pass_size=PassSize(tokens=40))
    jobs = {"all weights": first, "adapters": adapters, "unequal passes": unequal}
    settings = Settings(_env_file=None, state_dir=folder / "state")

    by_one: dict[str, TrainedModel] = {}
    for name, job in jobs.items():
        trained = release_training.train_job(settings, replace(job, folder=folder / "one" / name))
        assert trained is not None
        by_one[name] = trained

    launched = {name: replace(job, folder=folder / "two" / name) for name, job in jobs.items()}
    for job in launched.values():
        job.folder.mkdir(parents=True)
        (job.folder / processes.JOB).write_bytes(processes.JOB_JSON.dump_json(job))
    job_files = [str(job.folder / processes.JOB) for job in launched.values()]

    def launch_all(job: TrainingJob, count: int) -> list[str]:
        *command, _, _ = launch_command(job, count)
        return [*command, "tests.launched_trainings", *job_files]

    launch_command = processes.launch_command
    with pytest.MonkeyPatch.context() as patch:
        for variable in [variable for variable in os.environ if variable.startswith("TOOLFORMER_")]:
            patch.delenv(variable)
        patch.setenv(STATE_DIR_VARIABLE, str(settings.state_dir))
        patch.setattr(release_training, "write_curves", lambda *_: None)
        patch.setattr(processes, "launch_command", launch_all)
        train_on_release(settings, launched["all weights"], processes=2)
    by_two = {
        name: processes.RESULT_JSON.validate_json((job.folder / processes.RESULT).read_bytes())
        for name, job in launched.items()
    }
    return {name: (by_one[name], by_two[name]) for name in jobs}


def _log(trained: TrainedModel) -> list[dict[str, float]]:
    return read_lines(trained.directory / "training_log.jsonl")


def _losses(trained: TrainedModel) -> list[float]:
    return [line["loss"] for line in _log(trained)]


def _mean_nats(network: Any, rows: Sequence[Sequence[int]]) -> float:
    """By the definition: negative log-likelihood of all tokens but the first of each row."""
    nats = 0.0
    for ids in rows:
        row = torch.tensor([list(ids)])
        with torch.no_grad():
            log_probs = network(row).logits.log_softmax(-1)[0, :-1]  # (position, vocabulary)
        nats -= float(log_probs.gather(1, row[0, 1:, None]).sum())
    return nats / sum(len(ids) - 1 for ids in rows)


def test_a_trained_model_has_the_names_of_transformers_4_too(train):
    folder = train(finetune_steps=1).directory
    configuration = json.loads((folder / "config.json").read_text())
    assert configuration["rope_theta"] == configuration["rope_parameters"]["rope_theta"]
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_card_of_a_trained_model_names_its_base_for_hubs(train):
    card = (train(finetune_steps=1).directory / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert header["base_model"] == "tiny@1"
    assert header["library_name"] == "transformers"


# What a step computes


def test_neither_losses_nor_weights_change_by_splitting_a_batch_as_by_another_seed(train):
    whole, split = (train(f"{size}", finetune_steps=3, finetune_device_batch=size) for size in (4, 1))
    assert _losses(split) == pytest.approx(_losses(whole), abs=1e-4)
    assert [line["tokens"] for line in _log(split)] == [line["tokens"] for line in _log(whole)]
    # Adam turns rounding of near-zero gradients into small steps.
    assert largest_difference(whole.directory, split.directory) < 2e-3
    # 2 of 20 steps are warm-up; each is logged with the rate that it used.
    other = train("other", finetune_steps=20, finetune_batch=1, seed=2)
    assert _losses(other)[0] != pytest.approx(_losses(whole)[0], abs=1e-2)
    assert [line["learning_rate"] for line in _log(other)] == pytest.approx([0.0, 5e-4] + 18 * [1e-3])


@pytest.mark.parametrize("without_calls", [False, True])
def test_the_first_loss_is_the_mean_over_the_tokens_of_the_text_alone(
    train, base, release_dir, without_calls
):
    sequences = TokenSequences.of(
        read_release(release_dir), base.tokenization, 48, without_calls=without_calls
    )
    rows = [sequences[index]["input_ids"] for index in range(len(sequences))]
    assert ("[Calculator" in "".join(base.tokenization.decode(ids) for ids in rows)) is not without_calls
    # One step sees each sequence once.
    batch = {"finetune_batch": len(rows), "finetune_device_batch": 3}
    [line] = _log(train(finetune_steps=1, without_calls=without_calls, **batch))
    assert line["loss"] == pytest.approx(_mean_nats(base.network, rows), abs=2e-4)
    assert line["tokens"] == sum(map(len, rows))


def test_a_vocabulary_that_cannot_write_the_markers_is_refused(train, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Tokenization, "decode", lambda *_: " -<unk>")
        with pytest.raises(ModelError, match="expected a vocabulary that can write"):
            train()
    assert not (tmp_path / "training").exists()


def test_a_diverged_training_is_an_error_not_a_model(train, base, tmp_path, monkeypatch):
    base.network.lm_head.weight.data[0, 0] = math.nan
    monkeypatch.setattr(release_training, "load_base_model", lambda *_, **__: base)
    with pytest.raises(ModelError, match="expected a finite training loss"):
        train()
    assert not (tmp_path / "training" / "model").exists()


def test_a_training_on_a_known_card_says_its_share_of_the_peak(train, monkeypatch, caplog):
    monkeypatch.setattr(training, "cards_of", lambda *_, **__: Cards("NVIDIA A100-SXM4-80GB"))
    with caplog.at_level(logging.INFO, logger="toolformer_ops"):
        trained = train(finetune_steps=1)
    assert "tokens/s, 0.0% of the peak of NVIDIA A100-SXM4-80GB" in caplog.text
    assert [line["share_of_peak"] for line in _log(trained)] == [0.0]


def test_a_training_on_a_cpu_has_no_share_of_a_peak(train):
    assert ["share_of_peak" in line for line in _log(train(finetune_steps=1))] == [False]


# Kills


KILLS = {
    "line-7": "checkpoint-6",
    "write-8": "checkpoint-6",
    "whole-6": "checkpoint-4",
    "told-9": "checkpoint-10",  # SIGTERM: the step at work is done, and saved
}
"""When a training is killed, and which checkpoint is whole then."""


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(killed_training.METHODS))
def test_training_that_was_killed_ends_as_an_undisturbed_one(
    train_killed, tiny_gpt2_dir, release_dir, tmp_path, method
):
    """The model has dropout, so that the random numbers must continue, too."""
    command = [
        sys.executable,
        "-m",
        "tests.killed_training",
        str(tiny_gpt2_dir),
        str(release_dir),
        str(tmp_path),
    ]
    train_killed = functools.partial(train_killed, **killed_training.METHODS[method])
    environment = dict(os.environ) | {
        "OMP_NUM_THREADS": "1",
        STATE_DIR_VARIABLE: str(tmp_path / "state"),
        killed_training.METHOD_VARIABLE: method,
    }
    subprocess.run([*command, *KILLS], cwd=REPOSITORY, env=environment, check=True)
    undisturbed = train_killed("undisturbed")
    expected = _losses(undisturbed)
    for kill, checkpoint in KILLS.items():
        folder = tmp_path / kill
        assert not (folder / "model").exists()
        assert [path.parent.name for path in folder.glob("checkpoints/*/whole.json")] == [checkpoint]
        assert (folder / "checkpoints" / checkpoint / "optimizer.pt").is_file()

        resumed = train_killed(kill)
        assert _losses(resumed) == pytest.approx(expected, abs=1e-5)
        assert resumed.training_loss == pytest.approx(undisturbed.training_loss, abs=1e-5)
        assert largest_difference(resumed.directory, undisturbed.directory) < 1e-5
        assert [line["step"] for line in _log(resumed)] == list(range(1, 13))
        assert [line["step"] for line in read_lines(resumed.directory / "development_log.jsonl")] == [6, 12]
        assert resumed.best == undisturbed.best
    # Killed after its last step, when the optimiser's state is gone.
    shutil.rmtree(tmp_path / "undisturbed" / "model")
    assert not (tmp_path / "undisturbed" / "checkpoints" / "checkpoint-12" / "optimizer.pt").exists()
    again = train_killed("undisturbed")
    assert (_losses(again), again.best) == (expected, undisturbed.best)


# Adapters


def test_a_model_of_adapters_has_the_weights_of_any_other(train, tiny_model_dir):
    from safetensors.torch import load_file

    base, found = (
        load_file(folder / "model.safetensors") for folder in (tiny_model_dir, train(**LORA).directory)
    )
    assert found.keys() == base.keys()
    assert {weight.dtype for weight in found.values()} == {torch.float32}
    changed = {name for name, weight in found.items() if not torch.equal(weight, base[name])}
    assert changed == {name for name in base if name.endswith("proj.weight")}


def test_a_model_of_adapters_has_the_perplexity_that_was_measured(train, base):
    from transformers import AutoModelForCausalLM

    trained = train(**LORA, finetune_eval_steps=2, dev_texts=DEV_TEXTS)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text)) for text in DEV_TEXTS]
    network = AutoModelForCausalLM.from_pretrained(trained.directory)
    assert trained.best is not None
    assert trained.best.perplexity != pytest.approx(math.exp(_mean_nats(base.network, rows)), rel=0.01)
    assert math.exp(_mean_nats(network, rows)) == pytest.approx(trained.best.perplexity, rel=1e-4)


def test_checkpoints_hold_the_adapters_alone(train, tmp_path):
    train(**LORA)
    weights = [path.name for path in (tmp_path / "training" / "checkpoints").rglob("*.safetensors")]
    assert weights == ["adapter_model.safetensors"]


def test_the_card_of_a_model_of_adapters_says_so(train):
    card = (train(**LORA, finetune_steps=1).directory / "README.md").read_text(encoding="utf-8")
    assert "Trained: LoRA adapters of rank 4 and alpha 8 beside all linear layers of the decoder" in card


def test_the_card_of_a_model_of_which_all_weights_were_trained_says_so(train):
    card = (train(finetune_steps=1).directory / "README.md").read_text(encoding="utf-8")
    assert "Trained: all weights, by AdamW." in card


@pytest.mark.parametrize("finetune_device_batch", [1, None])
def test_splitting_a_batch_changes_no_adapter(train, finetune_device_batch):
    whole = train("whole", **LORA, finetune_steps=3, finetune_device_batch=4)
    split = train("split", **LORA, finetune_steps=3, finetune_device_batch=finetune_device_batch)
    assert _losses(split) == pytest.approx(_losses(whole), abs=1e-4)


def test_activations_that_are_computed_twice_change_no_adapter(
    settings, tiny_model_dir, release_dir, tmp_path
):
    once, twice = (
        train_on_release(
            settings,
            TrainingJob(
                recipe_of(**LORA, finetune_steps=3),
                str(tiny_model_dir),
                release_dir,
                (),
                tmp_path / f"{is_twice}",
                activation_checkpointing=is_twice,
            ),
        )
        for is_twice in (False, True)
    )
    assert _losses(twice) == pytest.approx(_losses(once), abs=1e-4)


@pytest.mark.slow
def test_two_processes_train_the_adapters_of_one(trained_twice):
    one, two = trained_twice["adapters"]
    assert _losses(two) == pytest.approx(_losses(one), rel=1e-4)
    assert largest_difference(one.directory, two.directory) < 1e-3


def test_adapters_beside_weights_in_bfloat16_are_added_to_those_in_float32(
    train, tiny_model_dir, tmp_path, monkeypatch
):
    from safetensors.torch import load_file

    monkeypatch.setattr(release_training, "weights_format", lambda *_: "bfloat16")
    trained = train(**LORA, finetune_steps=2)
    [adapters] = (tmp_path / "training" / "checkpoints").rglob("adapter_model.safetensors")
    parts = load_file(adapters)
    base, found = (load_file(folder / "model.safetensors") for folder in (tiny_model_dir, trained.directory))
    layer = "model.layers.1.mlp.down_proj"
    product = (
        parts[f"base_model.model.{layer}.lora_B.weight"] @ parts[f"base_model.model.{layer}.lora_A.weight"]
    )
    torch.testing.assert_close(found[f"{layer}.weight"], base[f"{layer}.weight"] + 2 * product)


# The optimiser


def test_moments_in_8_bits_train_nearly_as_those_in_float32(train):
    narrow, wide = (train(name, finetune_optimizer=name) for name in ("adamw_8bit", "adamw"))
    assert _losses(narrow) == pytest.approx(_losses(wide), abs=0.05)
    assert largest_difference(narrow.directory, wide.directory) > 0.0


# Development documents


def test_development_perplexity_is_that_of_the_plain_beginnings(train, base):
    # The only step has rate 0.
    trained = train(finetune_steps=1, finetune_length=16, dev_texts=DEV_TEXTS)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text))[:16] for text in DEV_TEXTS]
    assert trained.best is not None
    assert trained.best.step == 1
    assert trained.best.perplexity == pytest.approx(math.exp(_mean_nats(base.network, rows)), rel=1e-5)


def test_weights_of_the_best_step_are_kept_beside_curves_of_every_step(train, base, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(release_training, "write_curves", write_curves)
    trained = train(
        finetune_steps=9, finetune_eval_steps=2, finetune_learning_rate=0.05, finetune_checkpoint_steps=4,
        dev_texts=DEV_TEXTS,
    )  # fmt: skip
    scores = {
        line["step"]: line["perplexity"] for line in read_lines(trained.directory / "development_log.jsonl")
    }
    assert list(scores) == [2, 4, 6, 8, 9]
    assert trained.best is not None
    assert trained.best.perplexity == min(scores.values()) < scores[9] / 1.1
    network = AutoModelForCausalLM.from_pretrained(trained.directory)
    rows = [(*base.tokenization.start_ids, *base.tokenization.ids(text)) for text in DEV_TEXTS]
    assert math.exp(_mean_nats(network, rows)) == pytest.approx(trained.best.perplexity, rel=1e-4)
    assert network.config.use_cache  # as the model it started from
    assert (trained.directory / PICTURE).read_bytes().startswith(b"\x89PNG")
    events = EventAccumulator(str(trained.directory / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(_losses(trained))
    assert [event.step for event in events.Scalars("development/perplexity")] == list(scores)


# Memory


def _memory_for(monkeypatch: pytest.MonkeyPatch, fits: Callable[[ReleaseTrainer], bool]) -> None:
    """A step that does not fit is out of memory."""
    step = ReleaseTrainer.training_step

    def short(self: ReleaseTrainer, *arguments: Any, **options: Any) -> torch.Tensor:
        if not fits(self):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return step(self, *arguments, **options)

    monkeypatch.setattr(ReleaseTrainer, "training_step", short)


def test_out_of_memory_makes_a_training_smaller_not_another_one(train, monkeypatch, caplog):
    undisturbed = train("undisturbed")

    def shortened(fits: Callable[[ReleaseTrainer], bool], says: str, **changes: int) -> None:
        caplog.clear()
        with monkeypatch.context() as patch, caplog.at_level(logging.INFO, logger="toolformer_ops"):
            _memory_for(patch, fits)
            short = train(str(len(changes)), **changes)
        assert says in caplog.text
        assert caplog.text.count("step 1 of 6") == 1
        assert _losses(short) == pytest.approx(_losses(undisturbed), abs=1e-4)

    shortened(lambda trainer: bool(trainer.model.is_activation_checkpointing), "computing activations twice")
    shortened(  # it continues from the checkpoint of step 2
        lambda trainer: trainer.pass_size.sequences <= 2 or trainer.state.global_step < 3,
        "continuing with 2 sequences",
        finetune_device_batch=4,
        finetune_checkpoint_steps=2,
    )
    _memory_for(monkeypatch, lambda _: False)
    with pytest.raises(ModelError, match="Not even one sequence of 48 tokens fits"):
        train("none fits")


@pytest.mark.parametrize("finetune_length", [16, 48])
def test_out_of_memory_halves_passes_that_are_counted_in_tokens(train, monkeypatch, finetune_length):
    sizes: list[int] = []

    def fits(trainer: ReleaseTrainer) -> bool:
        sizes.append(trainer.pass_size.tokens)
        return trainer.pass_size.tokens <= 100

    _memory_for(monkeypatch, fits)
    train("short", finetune_device_batch=None, finetune_length=finetune_length)
    assert list(dict.fromkeys(sizes)) == [2048, 1024, 512, 256, 128, 64]


def test_passes_that_are_counted_in_tokens_train_the_same_model(train):
    by_tokens, by_sequences = (
        train(f"{size}", finetune_steps=3, finetune_device_batch=size) for size in (None, 1)
    )
    assert _losses(by_tokens) == pytest.approx(_losses(by_sequences), abs=1e-4)
    assert largest_difference(by_tokens.directory, by_sequences.directory) < 2e-3


# Several processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "value"),
    [("training_log", "loss"), ("training_log", "tokens"), ("development_log", "perplexity")],
)
def test_two_processes_log_what_one_does(trained_twice, log, value):
    one, two = (
        {line["step"]: line[value] for line in read_lines(trained.directory / f"{log}.jsonl")}
        for trained in trained_twice["all weights"]
    )
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(trained_twice):
    one, two = trained_twice["all weights"]
    assert two.training_loss == pytest.approx(one.training_loss, abs=1e-3)
    assert largest_difference(one.directory, two.directory) < 1e-3


@pytest.mark.slow
def test_processes_with_unequal_numbers_of_passes_give_the_losses_of_one(trained_twice):
    one, two = trained_twice["unequal passes"]
    assert _losses(two) == pytest.approx(_losses(one), rel=1e-4)


def test_checkpoint_that_holds_code_is_not_run(train_killed, tmp_path, monkeypatch):
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

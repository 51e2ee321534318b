"""Which GPUs train, how their processes are started, and DeepSpeed's configuration."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.finetuning_jobs import DEV_TEXTS, recipe_of
from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError, ToolformerError
from toolformer_ops.finetuning import processes, release_training, training
from toolformer_ops.finetuning.processes import (
    FAILURE,
    JOB_JSON,
    RESULT_JSON,
    ZERO3,
    devices_of,
    launch_command,
    write_failure,
)
from toolformer_ops.finetuning.recipe import PassSize, TrainingJob
from toolformer_ops.finetuning.training import TrainedModel, require_training_memory
from toolformer_ops.finetuning.training_log import DevelopmentScore
from toolformer_ops.language_model.models.gpus import GIB


def _settings(device: str) -> Settings:
    return Settings(_env_file=None, device=device)


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    return TrainingJob(
        recipe_of(without_calls=True), "model@1", tmp_path / "release", DEV_TEXTS, tmp_path,
        pass_size=PassSize(tokens=4), activation_checkpointing=True, deepspeed="zero3.json",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "visible", "device", "asked", "expected"),
    [
        (4, None, "cuda", None, ["0", "1", "2", "3"]),
        (4, None, "cuda", 2, ["0", "1"]),
        (3, "4,5,7", "cuda", None, ["4", "5"]),  # three do not share a batch of 128
        (3, "4,5,7", "cuda:1", None, ["5"]),
        (3, None, "cpu", None, None),
        (1, None, "cuda", None, None),
        (0, None, "cpu", 2, ["0", "1"]),
    ],
)
def test_one_process_a_gpu_and_as_many_as_share_a_batch_evenly(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    visible: str | None,
    device: str,
    asked: int | None,
    expected: Any,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices_of(_settings(device), recipe_of(finetune_batch=128), asked) == expected


def test_job_and_result_come_back_as_they_were_written(job: TrainingJob, tmp_path: Path) -> None:
    command = launch_command(job, 8)
    assert command[command.index("--num_processes") + 1] == "8"
    assert command[-3:] == ["--module", "toolformer_ops.finetuning", str(job.folder / "job.json")]
    assert JOB_JSON.validate_json(JOB_JSON.dump_json(job)) == job
    for best in (None, DevelopmentScore(500, 8.5)):
        trained = TrainedModel(tmp_path / "model", 1.5, 2.0, "bfloat16", best)
        assert RESULT_JSON.validate_json(RESULT_JSON.dump_json(trained)) == trained


def test_first_failure_of_a_process_is_that_of_the_training(job: TrainingJob) -> None:
    assert isinstance(processes.failure_of(job, 1), ToolformerError)
    for error in (DeviceMemoryError("too little"), ModelError("diverged")):
        (job.folder / FAILURE).unlink(missing_ok=True)
        write_failure(job, error)
        write_failure(job, ToolformerError("the others were ended"))
        failure = processes.failure_of(job, 1)
        assert (type(failure), str(failure)) == (type(error), str(error))


def test_deepspeed_is_asked_for_on_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    for device, said in (("cpu", False), ("cuda", True)):
        assert not processes.has_deepspeed(_settings(device))
        assert ("deepspeed is not installed" in caplog.text) == said


class StopError(Exception):
    """In place of the rest of a training."""


def test_weights_that_deepspeed_divides_are_loaded_when_the_arguments_that_name_it_exist(
    job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers looks for them when it loads; else each process would hold all weights in float32."""
    done: list[object] = []

    def load(*_: object, sharded: bool) -> None:
        done.append(sharded)
        raise StopError

    monkeypatch.setattr(release_training, "training_arguments", lambda *_: done.append("arguments"))
    monkeypatch.setattr(release_training, "load_base_model", load)
    for deepspeed in ("zero3.json", None):
        with pytest.raises(StopError):
            release_training.train_job(_settings("cpu"), dataclasses.replace(job, deepspeed=deepspeed))
    assert done == ["arguments", True, "arguments", False]


def test_each_process_loads_onto_its_own_gpu_and_none_onto_one_what_deepspeed_divides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices: list[str] = []

    def load(_path: str, _revision: None, _dtype: str, device: str, *_: object) -> None:
        devices.append(device)
        raise StopError

    monkeypatch.setattr(training, "load_network", load)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for world, device, sharded in (
        (1, "cuda:1", False),
        (2, "cpu", False),
        (2, "cuda", False),
        (2, "cuda", True),
    ):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        with pytest.raises(StopError):
            training.load_base_model(_settings(device), "model", None, sharded=sharded)
    assert devices == ["cuda:1", "cpu", "cuda:1", "cpu"]


def test_zero3_configuration_loads_and_every_auto_is_filled_by_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers.integrations import deepspeed

    assert HfDeepSpeedConfig(str(ZERO3)).is_zero3()
    monkeypatch.setattr(deepspeed, "dep_version_check", lambda name: None)  # looks for the package itself

    class Config(deepspeed.HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):
        """transformers' class over accelerate's, as where DeepSpeed is installed."""

    config = Config(json.loads(ZERO3.read_text()))
    arguments = SimpleNamespace(
        world_size=8, per_device_train_batch_size=4, gradient_accumulation_steps=4, max_grad_norm=1.0, bf16=True,
        fp16=False, bf16_full_eval=False, fp16_full_eval=False, learning_rate=1e-5, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=1e-8, weight_decay=0.0, save_on_each_node=False, get_warmup_steps=lambda steps: 200,
    )  # fmt: skip
    config.trainer_config_process(arguments)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=4096, get_text_config=lambda: None))
    config.trainer_config_finalize(arguments, model, 2000)
    assert config.get_value("train_batch_size") == 128
    assert config.get_value("bf16.enabled") is True
    assert config.get_value("gradient_clipping") == 1.0
    assert config.get_value("zero_optimization.stage3_gather_16bit_weights_on_model_save") is True
    assert "auto" not in json.dumps(config.config)
    deepspeed.unset_hf_deepspeed_config()


def base_on_a_gpu(weights: int) -> Any:
    """A model of so many weights that says it is on a GPU."""
    parameter = SimpleNamespace(numel=lambda: weights)
    network = SimpleNamespace(device="cuda:0", parameters=lambda: iter([parameter]))
    return SimpleNamespace(network=network)


@pytest.mark.parametrize("weights", [1_500_000_000, 4_900_000_000])
def test_a_training_whose_state_fits_on_the_gpu_begins(weights: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (70 * GIB, 80 * GIB))
    require_training_memory(base_on_a_gpu(weights))


def test_a_training_whose_state_does_not_fit_on_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (70 * GIB, 80 * GIB))
    with pytest.raises(
        ModelError, match=r"104 GiB for the training of 7\.0 billion .* found 80 GiB.* 3 GPUs"
    ):
        require_training_memory(base_on_a_gpu(7_000_000_000))

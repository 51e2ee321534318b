"""Which GPUs train, how their processes are started, and DeepSpeed's configuration."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.finetuning_jobs import DEV_TEXTS, recipe_of
from toolformer_ops.config import Settings
from toolformer_ops.errors import DeviceMemoryError, ModelError, ToolformerError
from toolformer_ops.finetuning import base_model, processes, release_training
from toolformer_ops.finetuning.base_model import (
    BaseModel,
    computes_in_bfloat16,
    load_base_model,
    require_training_memory,
    weights_format,
)
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
from toolformer_ops.finetuning.training import TrainedModel
from toolformer_ops.finetuning.training_log import DevelopmentScore
from toolformer_ops.language_model.devices import GIB
from toolformer_ops.runs.choices import FinetuningChoices


def _settings(device: str) -> Settings:
    return Settings(_env_file=None, device=device)


@pytest.fixture
def job(tmp_path):
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
def test_as_many_processes_as_gpus_share_a_batch_evenly(monkeypatch, gpus, visible, device, asked, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices_of(_settings(device), recipe_of(finetune_batch=128), asked) == expected


def test_a_job_is_launched_by_its_file_in_its_processes(job):
    command = launch_command(job, 8)
    assert command[command.index("--num_processes") + 1] == "8"
    assert command[-3:] == ["--module", "toolformer_ops.finetuning", str(job.folder / "job.json")]


def test_a_job_is_read_as_it_was_written(job):
    assert JOB_JSON.validate_json(JOB_JSON.dump_json(job)) == job


def test_a_result_is_read_as_it_was_written(tmp_path):
    for best in (None, DevelopmentScore(500, 8.5)):
        trained = TrainedModel(tmp_path / "model", 1.5, 2.0, "bfloat16", best)
        assert RESULT_JSON.validate_json(RESULT_JSON.dump_json(trained)) == trained


def test_first_failure_of_a_process_is_that_of_the_training(job):
    assert isinstance(processes.failure_of(job, 1), ToolformerError)
    for error in (DeviceMemoryError("too little"), ModelError("diverged")):
        (job.folder / FAILURE).unlink(missing_ok=True)
        write_failure(job, error)
        write_failure(job, ToolformerError("the others were ended"))
        failure = processes.failure_of(job, 1)
        assert (type(failure), str(failure)) == (type(error), str(error))


def test_deepspeed_is_asked_for_on_gpus_alone(monkeypatch, caplog):
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    for device, said in (("cpu", False), ("cuda", True)):
        assert not processes.has_deepspeed(_settings(device))
        assert ("deepspeed is not installed" in caplog.text) == said


class StopError(Exception):
    """In place of the rest of a training."""


def test_weights_that_deepspeed_divides_are_loaded_when_the_arguments_that_name_it_exist(job, monkeypatch):
    """transformers looks for them when it loads; else each process would hold all weights in float32."""
    done: list[object] = []

    def load(*_: object, sharded: bool, dtype: str) -> None:
        done.append(sharded)
        raise StopError

    monkeypatch.setattr(release_training, "training_arguments", lambda *_: done.append("arguments"))
    monkeypatch.setattr(release_training, "load_base_model", load)
    for deepspeed in ("zero3.json", None):
        with pytest.raises(StopError):
            release_training.train_job(_settings("cpu"), dataclasses.replace(job, deepspeed=deepspeed))
    assert done == ["arguments", True, "arguments", False]


def test_each_process_loads_onto_its_own_gpu_what_deepspeed_does_not_divide(monkeypatch):
    devices: list[str] = []

    def load(_path: str, _revision: None, _dtype: str, device: str, *_: object) -> None:
        devices.append(device)
        raise StopError

    monkeypatch.setattr(base_model, "load_network", load)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for world, device, sharded in (
        (1, "cuda:1", False),
        (2, "cpu", False),
        (2, "cuda", False),
        (2, "cuda", True),
    ):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        with pytest.raises(StopError):
            load_base_model(_settings(device), "model", None, sharded=sharded)
    assert devices == ["cuda:1", "cpu", "cuda:1", "cpu"]


def test_every_auto_of_the_zero3_configuration_is_filled_by_the_recipe(monkeypatch):
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


class OnAGpu(torch.nn.Module):
    """So many square layers of 10,000 numbers a token, and embeddings, which says that it is on a GPU; takes no memory."""

    device = "cuda:0"

    def __init__(self, layers: int, dtype: torch.dtype) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": "meta", "dtype": dtype}
        self.embeddings = torch.nn.Embedding(10_000, 10_000, **options)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(10_000, 10_000, bias=False, **options) for _ in range(layers - 1)
        )

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embeddings

    def get_output_embeddings(self) -> None:
        return None


def base_on_a_gpu(hundred_millions: int, dtype: torch.dtype = torch.float32) -> BaseModel:
    """A model of so many hundred million weights that says it is on a GPU."""
    return BaseModel(OnAGpu(hundred_millions, dtype), None, SimpleNamespace(), 1024)


@pytest.fixture
def gpu_of_80_gib(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (70 * GIB, 80 * GIB))
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)


def require_memory(base: BaseModel, **chosen: object) -> None:
    require_training_memory(_settings("cuda"), base, FinetuningChoices(**chosen))


@pytest.mark.usefixtures("gpu_of_80_gib")
@pytest.mark.parametrize(
    ("hundred_millions", "optimizer"), [(15, "adamw"), (53, "adamw"), (70, "adamw_8bit"), (84, "adamw_8bit")]
)
def test_a_training_whose_state_fits_on_the_gpu_begins(hundred_millions, optimizer):
    require_memory(base_on_a_gpu(hundred_millions), finetune_optimizer=optimizer)


@pytest.mark.usefixtures("gpu_of_80_gib")
@pytest.mark.parametrize(
    ("hundred_millions", "optimizer", "needed"),
    [(54, "adamw", "expected a GPU with 80 GiB"), (86, "adamw_8bit", "expected a GPU with 81 GiB")],
)
def test_a_training_whose_state_does_not_fit_on_the_gpu_is_refused(hundred_millions, optimizer, needed):
    with pytest.raises(ModelError, match=needed):
        require_memory(base_on_a_gpu(hundred_millions), finetune_optimizer=optimizer)


@pytest.mark.usefixtures("gpu_of_80_gib")
def test_a_refusal_names_each_choice_that_would_fit():
    """Of 7 billion weights: 16 bytes each, 10 each, and 2 each with adapters of 16 x 20,000 numbers a layer."""
    remedies = r"adamw_8bit \(66 GiB\), finetune_method lora \(13 GiB\), 3 GPUs or more"
    with pytest.raises(
        ModelError,
        match=rf"104 GiB for the training of 7\.0 billion .* found 80 GiB.* Take finetune_optimizer {remedies}",
    ):
        require_memory(base_on_a_gpu(70))


@pytest.mark.usefixtures("gpu_of_80_gib")
def test_a_refusal_names_no_choice_that_would_not_fit():
    with pytest.raises(ModelError, match=r"Take finetune_method lora \(57 GiB\), 7 GPUs"):
        require_memory(base_on_a_gpu(300))


def adapters_on_a_gpu(hundred_millions: int) -> BaseModel:
    base = base_on_a_gpu(hundred_millions, torch.bfloat16)
    base.network.requires_grad_(False)
    adapters = torch.nn.Linear(10_000, 10_000, device="meta")
    return dataclasses.replace(base, adapted=torch.nn.ModuleList([base.network, adapters]))


@pytest.mark.usefixtures("gpu_of_80_gib")
def test_adapters_of_a_model_of_40_billion_frozen_weights_fit():
    require_memory(adapters_on_a_gpu(400), finetune_method="lora")


@pytest.mark.usefixtures("gpu_of_80_gib")
def test_frozen_weights_that_fill_the_gpu_are_refused():
    """2 bytes for each of 43 billion, and 16 for each of a hundred million."""
    with pytest.raises(
        ModelError, match=r"expected a GPU with 82 GiB .* Take a larger GPU, or a smaller model"
    ):
        require_memory(adapters_on_a_gpu(430), finetune_method="lora")


@pytest.mark.parametrize(
    ("chosen", "is_spread"),
    [({}, True), ({"finetune_method": "lora"}, False), ({"finetune_optimizer": "adamw_8bit"}, False)],
)
def test_deepspeed_divides_the_state_of_all_weights_with_adamw_alone(chosen, is_spread):
    assert recipe_of(**chosen).is_spread == is_spread


@pytest.mark.parametrize(
    ("device", "has_bfloat16", "method", "dtype"),
    [
        ("cpu", True, "lora", "float32"),
        ("cuda", True, "lora", "bfloat16"),
        ("cuda", False, "lora", "float32"),
        ("cuda", True, "full", "float32"),
    ],
)
def test_frozen_weights_have_the_format_in_which_passes_compute(
    device, has_bfloat16, method, dtype, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: has_bfloat16)
    assert weights_format(_settings(device), FinetuningChoices(finetune_method=method)) == dtype


@pytest.mark.parametrize(
    ("device", "training_dtype", "computes"),
    [
        ("cpu", "auto", False),
        ("cpu", "bfloat16", True),
        ("cuda", "auto", True),
        ("cuda", "float32", False),
    ],
)
def test_the_settings_say_whether_passes_compute_in_bfloat16(device, training_dtype, computes, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)
    settings = _settings(device).model_copy(update={"training_dtype": training_dtype})
    assert computes_in_bfloat16(settings) == computes

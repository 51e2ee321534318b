"""Several GPUs: one process each, started by `accelerate launch` as an argument list.

DeepSpeed's ZeRO-3 spreads the weights. The processes run `python -m toolformer_ops.finetuning JOB`, where JOB
is a training as JSON. They end when the process that started them does, even by -9. Without DeepSpeed every
process holds all weights.
"""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from toolformer_ops import errors, termination
from toolformer_ops.config import Settings
from toolformer_ops.errors import ToolformerError
from toolformer_ops.finetuning.recipe import FinetuningRecipe, TrainingJob
from toolformer_ops.finetuning.training import TrainedModel
from toolformer_ops.storage.machine.shared_files import replace_file

logger = logging.getLogger(__name__)

ZERO3 = Path(__file__).with_name("zero3.json")
JOB = "job.json"
RESULT = "result.json"
FAILURE = "failure.json"
VISIBLE = "CUDA_VISIBLE_DEVICES"
JOB_JSON = TypeAdapter(TrainingJob)
RESULT_JSON = TypeAdapter(TrainedModel)


def devices_of(settings: Settings, recipe: FinetuningRecipe, processes: int | None) -> list[str] | None:
    """The GPUs (or names of CPU processes) that train, one process each; None if this process trains itself.

    `cuda` means all GPUs that share a batch evenly, `cuda:1` that one.
    """
    import torch

    if settings.device == "cpu" or not torch.cuda.is_available():
        count = recipe.processes(processes or 1)
        return [str(number) for number in range(count)] if count > 1 else None
    visible = os.environ.get(VISIBLE)
    gpus = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
    if len(gpus) == 1:
        return None
    index = torch.device(settings.device).index
    if index is not None:
        return [gpus[index]]
    chosen = gpus[: recipe.processes(min(processes or len(gpus), len(gpus)))]
    if len(chosen) < len(gpus):
        logger.warning(
            "a batch of %d is shared by %d of %d GPUs", recipe.choices.finetune_batch, len(chosen), len(gpus)
        )
    return chosen


def train_in_processes(settings: Settings, job: TrainingJob, devices: Sequence[str]) -> TrainedModel:
    """Train in one process a device.

    Raises:
        DeviceMemoryError: a pass does not fit into a device's memory.
        ModelError: the loss stopped being a finite number.
        ToolformerError: a process ended otherwise; the log has its message.
        TerminationRequest: SIGTERM came, and the processes have ended.
    """
    job.folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, FAILURE):
        (job.folder / name).unlink(missing_ok=True)
    shared = job.recipe.is_spread and has_deepspeed(settings) and len(devices) > 1
    job = dataclasses.replace(job, deepspeed=str(ZERO3) if shared else None)
    (job.folder / JOB).write_bytes(JOB_JSON.dump_json(job))
    logger.info("training in %d processes%s", len(devices), " with DeepSpeed ZeRO-3" if shared else "")
    on_cpu = settings.device == "cpu"
    environment = dict(os.environ) | {
        "TOOLFORMER_DEVICE": "cpu" if on_cpu else "cuda",
        "TOOLFORMER_THREADS": str(settings.threads),
        "OMP_NUM_THREADS": str(settings.threads),
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",  # DeepSpeed would unpickle its checkpoints
    }
    if not on_cpu:
        environment[VISIBLE] = ",".join(devices)
    process = subprocess.Popen(
        launch_command(job, len(devices)),
        env=environment,
        preexec_fn=termination.end_with_parent,  # noqa: PLW1509 - one prctl, no lock is taken
    )
    # SIGTERM is handed on, and the processes write a checkpoint; in a container this process alone gets it.
    status, told = None, False
    with termination.deferred():
        while status is None:
            if termination.requested() and not told:
                process.terminate()
                told = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=0.5)
    result = job.folder / RESULT
    if status == 0 and result.is_file():
        return RESULT_JSON.validate_json(result.read_bytes())
    raise failure_of(job, status)


def launch_command(job: TrainingJob, processes: int) -> list[str]:
    """The argument list; also for processes without a GPU, since only this way of starting needs no MPI."""
    return [
        sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes),
        "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
        "--module", "toolformer_ops.finetuning", str(job.folder / JOB),
    ]  # fmt: skip


def has_deepspeed(settings: Settings) -> bool:
    """Whether weights are spread over the processes."""
    is_installed = importlib.util.find_spec("deepspeed") is not None
    if settings.device != "cpu" and not is_installed:
        logger.warning(
            "deepspeed is not installed: every process holds all weights. `pip install deepspeed` spreads "
            "them"
        )
    return settings.device != "cpu" and is_installed


def write_failure(job: TrainingJob, error: Exception) -> None:
    """Say to the starting process why this one ends; the first word counts."""
    path = job.folder / FAILURE
    if not path.exists():
        replace_file(path, json.dumps({"kind": type(error).__name__, "message": str(error)}))


def failure_of(job: TrainingJob, status: int) -> ToolformerError:
    """The error that a process wrote before it ended, or else an error that names the status."""
    path = job.folder / FAILURE
    if path.is_file():
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["kind"] in vars(errors):
            failure: ToolformerError = vars(errors)[value["kind"]](value["message"])
            return failure
    return ToolformerError(
        f"expected the training processes to end with status 0, found {status}. The log above names the "
        "reason; the next start continues from the last checkpoint."
    )

"""Trainings that are killed: `python -m tests.killed_training MODEL RELEASE FOLDER WHERE-STEP...`.

WHERE: `line` after the log line of that step, `write` in the middle of writing that step's checkpoint,
`whole` before it is declared whole, `sending` before the manifest of that checkpoint is written on S3 (the
others are sent before the training continues), all four by SIGKILL; `told` after the log line by SIGTERM.
Each training is a process with the folder FOLDER/WHERE-STEP, forked after the imports, which take ten times
as long as the training. The variable KILLED_METHOD names what is trained, and how (`METHODS`).
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from tests.finetuning_jobs import DEV_TEXTS, recipe_of
from toolformer_ops import termination
from toolformer_ops.config import load_settings
from toolformer_ops.errors import EXIT_TERMINATED
from toolformer_ops.finetuning.checkpoints import Checkpoints, Snapshots
from toolformer_ops.finetuning.recipe import TrainingJob
from toolformer_ops.finetuning.release_training import train_on_release
from toolformer_ops.finetuning.training_log import ProgressLines
from toolformer_ops.storage.objects.publication import Manifest, ObjectStore

CHECKPOINT_STEPS = 4
METHOD_VARIABLE = "KILLED_METHOD"
METHODS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "adapters": {"finetune_method": "lora", "finetune_lora_rank": 4, "finetune_learning_rate": 1e-2},
    "moments in 8 bits": {"finetune_optimizer": "adamw_8bit"},
}
CHOICES = {"finetune_steps": 12, "finetune_eval_steps": 6, "finetune_checkpoint_steps": CHECKPOINT_STEPS}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(where: str, step: int) -> None:
    """Let the kill happen at this point."""
    line, write, conclude = ProgressLines.on_log, torch.save, Checkpoints.conclude
    send, conclude_publication = Snapshots.send, ObjectStore.conclude

    def after_line(
        self: ProgressLines, args: Any, state: Any, control: Any, logs: Any = None, **options: Any
    ) -> None:
        line(self, args, state, control, logs, **options)
        if where in ("line", "told") and state.global_step == step and "loss" in logs:
            os.kill(os.getpid(), signal.SIGTERM if where == "told" else signal.SIGKILL)

    def half_written(value: Any, path: Any, *arguments: Any, **options: Any) -> None:
        if where == "write" and str(path).endswith(f"checkpoint-{step}/optimizer.pt"):
            write(value, path, *arguments, **options)
            content = Path(path).read_bytes()
            Path(path).write_bytes(content[: len(content) // 2])
            kill()
        write(value, path, *arguments, **options)

    def before_whole(self: Checkpoints, concluded: int, best_step: int | None) -> None:
        if where == "whole" and concluded == step:
            kill()
        conclude(self, concluded, best_step)

    def send_and_wait(self: Snapshots, *arguments: Any, **options: Any) -> None:
        send(self, *arguments, **options)
        self.wait()

    def before_manifest(self: ObjectStore, manifest: Manifest, **options: bool) -> bool:
        if where == "sending" and f"/{step:08d}-" in manifest.prefix:
            kill()
        return conclude_publication(self, manifest, **options)

    Snapshots.send = send_and_wait
    ObjectStore.conclude = before_manifest
    ProgressLines.on_log = after_line
    torch.save = half_written
    Checkpoints.conclude = before_whole


def main(model: str, release: str, folder: str, *kills: str) -> None:
    for kill_at in kills:
        process_id = os.fork()
        if not process_id:
            where, _, step = kill_at.partition("-")
            termination.install()
            arm(where, int(step))
            recipe = recipe_of(**CHOICES, **METHODS[os.environ.get(METHOD_VARIABLE, "all weights")])
            job = TrainingJob(recipe, model, Path(release), DEV_TEXTS, Path(folder) / kill_at)
            train_on_release(load_settings(), job)
            sys.exit()
        _, status = os.waitpid(process_id, 0)
        expected = EXIT_TERMINATED if kill_at.startswith("told") else -signal.SIGKILL
        if os.waitstatus_to_exitcode(status) != expected:
            sys.exit(f"{kill_at}: expected a training that is killed, found the status {status}")


if __name__ == "__main__":
    main(*sys.argv[1:])

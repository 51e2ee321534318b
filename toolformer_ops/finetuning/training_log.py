"""What a training says of itself, a line in the log and in a file each time.

It has a line for each step reported, and for each development perplexity.

    training_log.jsonl      step, loss (nats a token, mean since the line before), learning_rate,
                            gradient_norm, tokens, tokens_per_second, seconds; on a GPU whose peak is known
                            share_of_peak
    development_log.jsonl   step, loss (nats a token), perplexity

Once a training has ended `write_curves` makes of them:

    curves.png                                  loss, and perplexity with the best step marked
    tensorboard/events.out.tfevents.finetuning  the same numbers, and learning rate, gradient norm and speed

The training loss is the mean over the tokens that `FinetuningRecipe.loss_counts` names, the development loss
over all tokens but start tokens of plain texts; `tokens` are all that the network has read.

No step is in a file twice: a training that continues from a checkpoint first forgets what came after it.
"""

import json
import logging
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from toolformer_ops.errors import ModelError
from toolformer_ops.language_model.throughput import Cards, Throughput
from toolformer_ops.storage.machine.shared_files import replace_file

logger = logging.getLogger(__name__)

TRAINING_LOG = "training_log.jsonl"
DEVELOPMENT_LOG = "development_log.jsonl"
PICTURE = "curves.png"
EVENTS = Path("tensorboard") / "events.out.tfevents.finetuning"
TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "tokens_per_second": "train/tokens_per_second",
    "share_of_peak": "train/share_of_peak",
}
LAST_LOGS = 5
"""Log lines whose mean loss is the training's loss."""


@dataclass(frozen=True)
class DevelopmentScore:
    """One evaluation on the development documents."""

    step: int
    perplexity: float
    """exp of the mean loss of a token."""


class TrainingLog:
    """The two files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.training = folder / TRAINING_LOG
        self.development = folder / DEVELOPMENT_LOG

    def forget_after(self, step: int) -> None:
        """Drop the lines of later steps, and a line that was cut off in mid-write."""
        for path in (self.training, self.development):
            valid = [line for line in read_lines(path) if line["step"] <= step]
            replace_file(path, "".join(json.dumps(line) + "\n" for line in valid))

    def best(self) -> DevelopmentScore | None:
        """The step with the lowest development perplexity, the first of equal ones.

        It is None if none is a number.
        """
        scores = [DevelopmentScore(line["step"], line["perplexity"]) for line in read_lines(self.development)]
        finite = [score for score in scores if math.isfinite(score.perplexity)]
        return min(finite, key=lambda score: (score.perplexity, score.step), default=None)

    def seconds(self) -> float:
        """Time spent training up to the last line, restarts left out."""
        return max((float(line["seconds"]) for line in read_lines(self.training)), default=0.0)

    def training_loss(self) -> float:
        """Mean loss of the last lines, nats a token.

        Raises:
            ModelError: it is not a finite number.
        """
        losses = [line["loss"] for line in read_lines(self.training)][-LAST_LOGS:]
        mean = sum(losses) / len(losses) if losses else math.nan
        if not math.isfinite(mean):
            raise ModelError(
                f"expected a finite training loss, found {losses}. No model is published. A smaller learning "
                "rate (finetune_learning_rate) or a longer warm-up keeps the training stable."
            )
        return mean


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of one of the files, as far as they are whole; none if it is not there."""
    lines: list[dict[str, Any]] = []
    if path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
    return lines


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


class ProgressLines(TrainerCallback):
    """Writes step, loss, speed and time left to the log, and each line to the files.

    Only the first of several processes does.
    """

    def __init__(
        self,
        log: TrainingLog,
        tokens_until: Callable[[int], int],
        cards: Cards,
        operations_a_token: float | None,
    ) -> None:
        """`tokens_until(step)`: tokens that the training has seen after that many steps.

        The `cards` are those of all processes.
        """
        self._log = log
        self._cards = cards
        self._operations_a_token = operations_a_token
        self._tokens_until = tokens_until

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Start the clock."""
        self._started = time.monotonic()
        self._seconds_before = self._log.seconds()
        self._first_step = state.global_step
        self._last = (self._started, self._tokens_until(state.global_step))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: object,
    ) -> None:
        """Write one line, of a training loss or of a development perplexity."""
        if logs is None or not state.is_world_process_zero:
            return
        if "loss" in logs:
            self._log_training(state.global_step, state.max_steps, logs)
        elif "development_loss" in logs:
            self._log_development(state.global_step, state.max_steps, logs)

    def _log_training(self, step: int, steps: int, logs: dict[str, Any]) -> None:
        now, tokens = time.monotonic(), self._tokens_until(step)
        then, tokens_then = self._last
        self._last = (now, tokens)
        new_tokens = tokens - tokens_then
        operations = None if self._operations_a_token is None else new_tokens * self._operations_a_token
        throughput = Throughput(new_tokens, now - then, operations, self._cards)
        elapsed = now - self._started
        left = elapsed / max(step - self._first_step, 1) * (steps - step)
        line = {
            "step": step,
            "loss": logs["loss"],
            "learning_rate": logs.get("learning_rate"),
            "gradient_norm": logs.get("grad_norm"),
            "tokens": tokens,
            "tokens_per_second": round(throughput.tokens_per_second, 1),
            "seconds": round(self._seconds_before + elapsed, 1),
        }
        if throughput.share is not None:
            line["share_of_peak"] = round(throughput.share, 4)
        append_line(self._log.training, line)
        duration = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
        logger.info("step %d of %d: loss %.4f, %s, %s left", step, steps, logs["loss"], throughput, duration)

    def _log_development(self, step: int, steps: int, logs: dict[str, Any]) -> None:
        before, perplexity = self._log.best(), logs["development_perplexity"]
        line = {"step": step, "loss": logs["development_loss"], "perplexity": perplexity}
        append_line(self._log.development, line)
        if before is None or perplexity < before.perplexity:
            verdict = "the best so far"
        else:
            verdict = f"the best was {before.perplexity:.3f} at step {before.step}"
        logger.info("step %d of %d: development perplexity %.3f, %s", step, steps, perplexity, verdict)


def write_curves(directory: Path, title: str, loss_counts: str) -> None:
    """Write the curves into the model's folder, which holds the logs.

    `loss_counts` names the tokens of the training loss.
    """
    from torch.utils.tensorboard import SummaryWriter

    log = TrainingLog(directory)
    training, development = read_lines(log.training), read_lines(log.development)
    heading = f"{title}\ntraining loss of {loss_counts}"
    _write_picture(directory / PICTURE, heading, training, development, log.best())
    # TensorBoard's file, under a name that does not tell the machine's.
    events = directory / EVENTS
    events.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for line in training:
                for name, tag in TAGS.items():
                    if line.get(name) is not None:
                        writer.add_scalar(tag, line[name], line["step"], walltime=line["seconds"])
            for line in development:
                writer.add_scalar("development/loss", line["loss"], line["step"])
                writer.add_scalar("development/perplexity", line["perplexity"], line["step"])
        [written] = Path(folder).iterdir()
        shutil.move(written, events)


def _write_picture(
    path: Path,
    heading: str,
    training: Sequence[dict[str, Any]],
    development: Sequence[dict[str, Any]],
    best: DevelopmentScore | None,
) -> None:
    """Draw training loss and development perplexity by step."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [line["step"] for line in training]
    above.plot(
        steps, [line["loss"] for line in training], color="tab:blue", marker="." if len(steps) < 20 else ""
    )
    above.set(title=heading, ylabel="training loss (nats a token)")
    if development:
        points = [(line["step"], line["perplexity"]) for line in development]
        below.plot(*zip(*points, strict=True), color="tab:orange", marker="o", label="development documents")
        chosen = [] if best is None else [point for point in points if point[0] == best.step]
        below.plot(
            *zip(*chosen, strict=True),
            color="tab:green",
            marker="*",
            markersize=14,
            linestyle="",
            label="kept",
        )
        below.legend()
    else:
        below.text(
            0.5,
            0.5,
            "no development documents: the last step is kept",
            ha="center",
            transform=below.transAxes,
        )
    below.set(xlabel="optimiser step", ylabel="perplexity of plain text")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=120, metadata={"Software": None})

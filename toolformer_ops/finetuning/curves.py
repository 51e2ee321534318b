"""Loss and development perplexity by step, as a picture and for TensorBoard, made of the logs once a training has ended.

    curves.png                                  loss, and perplexity with the best step marked
    tensorboard/events.out.tfevents.finetuning  the same numbers, and learning rate, gradient norm and speed

So no step is there twice, however often the training was killed.
"""

import shutil
import tempfile
from pathlib import Path

from toolformer_ops.finetuning.training_log import TrainingLog, read_lines

PICTURE = "curves.png"
EVENTS = Path("tensorboard") / "events.out.tfevents.finetuning"
TAGS = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "tokens_per_second": "train/tokens_per_second",
}


def write_curves(directory: Path, title: str, loss_counts: str) -> None:
    """Write both into the model's folder, which holds the logs; `loss_counts` names the tokens of the training loss."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from torch.utils.tensorboard import SummaryWriter

    log = TrainingLog(directory)
    training, development = read_lines(log.training), read_lines(log.development)
    best = log.best()

    # 1. The picture.
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    steps = [line["step"] for line in training]
    above.plot(steps, [line["loss"] for line in training], color="tab:blue", marker="." if len(steps) < 20 else "")
    above.set(title=f"{title}\ntraining loss of {loss_counts}", ylabel="training loss (nats a token)")
    if development:
        points = [(line["step"], line["perplexity"]) for line in development]
        below.plot(*zip(*points, strict=True), color="tab:orange", marker="o", label="development documents")
        chosen = [point for point in points if best is not None and point[0] == best.step]
        below.plot(*zip(*chosen, strict=True), color="tab:green", marker="*", markersize=14, linestyle="", label="kept")
        below.legend()
    else:
        below.text(0.5, 0.5, "no development documents: the last step is kept", ha="center", transform=below.transAxes)
    below.set(xlabel="optimiser step", ylabel="perplexity of plain text")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (above, below):
        axes.grid(visible=True, alpha=0.3)
    figure.savefig(directory / PICTURE, dpi=120, metadata={"Software": None})

    # 2. TensorBoard's file, under a name that does not tell the machine's.
    (directory / EVENTS).parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as writer:
            for line in training:
                for name, tag in TAGS.items():
                    if line[name] is not None:
                        writer.add_scalar(tag, line[name], line["step"], walltime=line["seconds"])
            for line in development:
                writer.add_scalar("development/loss", line["loss"], line["step"])
                writer.add_scalar("development/perplexity", line["perplexity"], line["step"])
        [events] = Path(folder).iterdir()
        shutil.move(events, directory / EVENTS)

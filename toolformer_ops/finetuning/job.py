"""A training as one value, which travels to other processes as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.finetuning.training import TrainedModel, TrainingPlan
from toolformer_ops.finetuning.training_log import DevelopmentScore


@dataclass(frozen=True)
class TrainingJob:
    """What to train, on what, and where."""

    recipe: FinetuningRecipe
    model: str
    """The model to start from: a folder, or hub id@revision."""
    release_dir: Path
    """Folder with the release's files."""
    dev_texts: tuple[str, ...]
    """Development documents."""
    folder: Path
    """Everything that the training writes."""
    plan: TrainingPlan

    def write(self, path: Path) -> None:
        """Write as JSON."""
        value = asdict(self) | {
            "recipe": self.recipe.model_dump(mode="json"),
            "release_dir": str(self.release_dir),
            "folder": str(self.folder),
        }
        path.write_text(json.dumps(value), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "TrainingJob":
        """Read what `write` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            FinetuningRecipe.model_validate(value["recipe"]),
            value["model"],
            Path(value["release_dir"]),
            tuple(value["dev_texts"]),
            Path(value["folder"]),
            TrainingPlan(**value["plan"]),
        )


def write_trained(trained: TrainedModel, path: Path) -> None:
    """Write a training's result as JSON."""
    path.write_text(json.dumps(asdict(trained) | {"directory": str(trained.directory)}), encoding="utf-8")


def read_trained(path: Path) -> TrainedModel:
    """Read what `write_trained` wrote."""
    value = json.loads(path.read_text(encoding="utf-8"))
    best = DevelopmentScore(**value["best"]) if value["best"] else None
    return TrainedModel(**(value | {"directory": Path(value["directory"]), "best": best}))

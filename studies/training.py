"""The training of an arm: the finetuning of the factory on the arm's texts, for as many tokens as every other arm reads.

A model's weights are removed when it has been measured, since a study has a hundred models; its logs stay.
"""

import json
import logging
import math
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.arms import ARMS, ChosenTexts
from studies.plan import StudyPlan
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.release.format import ReleasedCall, ReleasedText, write_texts
from toolformer_ops.runs.choices import FinetuningChoices

logger = logging.getLogger(__name__)

LOSSES = ("loss_without_call", "loss_without_result", "loss_with_result", "loss_reduction")
"""Fields of an annotated call that a released call has under the same name."""
LOG = "training_log.jsonl"


def released_text(tool: str, document_id: str, text: str, calls: Iterable[Mapping[Any, Any]]) -> ReleasedText:
    """A text with some of its annotated calls, in the format of a release; a loss that was not computed is nan."""
    released = []
    for call in calls:
        losses: dict[str, Any] = {
            name: math.nan if call[name] is None else float(call[name]) for name in LOSSES
        }
        released.append(
            ReleasedCall(
                call_id=f"{document_id}-{call['position_char']}",
                tool=tool,
                input=parse_call(call["call"]).input,
                result=call["result"],
                position_char=int(call["position_char"]),
                position_probability=None,
                sampling_recipe_id="study",
                execution_recipe_id="study",
                scoring_recipe_id="study",
                **losses,
            )
        )
    return ReleasedText.of(uuid.UUID(document_id), text, released, None)


def texts_of_arm(plan: StudyPlan, chosen: ChosenTexts) -> list[ReleasedText]:
    """Texts with a call each, in the format of a release."""
    return [
        released_text(plan.tool, record["document_id"], record["text"], [call]) for record, call in chosen
    ]


def arm_steps(
    settings: Settings, model: str, plan: StudyPlan, chosen: Mapping[str, ChosenTexts]
) -> dict[str, int]:
    """By arm, in how many steps it reads as many tokens as the arm with the fewest tokens a text reads in the plan's steps."""
    from toolformer_ops.runs.models import load_tokenization

    tokenization = load_tokenization(settings, model)
    tokens: dict[str, int] = {}
    for arm, texts in chosen.items():
        released = texts_of_arm(plan, texts)
        read = [text.plain_text if ARMS[arm].without_calls else text.text for text in released]
        tokens[arm] = sum(len(tokenization.ids(text)) for text in read)
    with_calls = [number for arm, number in tokens.items() if not ARMS[arm].without_calls]
    return equal_steps(tokens, plan.steps, min(with_calls or tokens.values()))


def equal_steps(tokens: Mapping[str, int], steps: int, tokens_of_steps: int) -> dict[str, int]:
    """By arm, in how many steps it reads as many tokens as one reads in `steps` whose texts have `tokens_of_steps`."""
    return {arm: max(1, round(steps * tokens_of_steps / number)) for arm, number in tokens.items()}


def train(
    settings: Settings, model: str, plan: StudyPlan, arm: str, texts: ChosenTexts, steps: int, folder: Path
) -> Path:
    """Return the folder of the training of an arm's model, as `train_texts`."""
    choices = plan.choices(model).part(FinetuningChoices)
    choices = choices.model_copy(update={"finetune_steps": steps})
    release = folder / f"release-{arm}"
    return train_texts(settings, model, choices, texts_of_arm(plan, texts), ARMS[arm].without_calls, release)


def train_texts(
    settings: Settings,
    model: str,
    choices: FinetuningChoices,
    texts: Sequence[ReleasedText],
    without_calls: bool,
    release: Path,
) -> Path:
    """Return the folder of a training, whose `model` has the weights, beside that of its release; trained unless it is there."""
    from toolformer_ops.finetuning.recipe import FinetuningRecipe, TrainingJob
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model.models import model_identity
    from toolformer_ops.language_model.models.identity import split_revision
    from toolformer_ops.storage.machine.shared_files import file_sha256

    release.mkdir(exist_ok=True)
    write_texts(release, texts)
    recipe = FinetuningRecipe(
        release_id=file_sha256(release / "data" / "part-00000.parquet")[:16],
        base_model=model_identity(*split_revision(model), settings=settings),
        choices=choices,
        without_calls=without_calls,
    )
    place = release.with_name(f"training-{recipe.model_id}")
    if not (place / "model" / "finetuning.json").exists():
        # No development texts: a fixed number of steps, so that arms differ in their texts alone.
        train_on_release(settings, TrainingJob(recipe, model, release, (), place))
    return place


def tokens_seen(training: Path) -> int:
    """Tokens that a training has read, from the last line of its log."""
    lines = (training / LOG).read_text(encoding="utf-8").splitlines()
    return int(json.loads(lines[-1])["tokens"])


def training_seconds(training: Path) -> float:
    """Seconds that a training has taken, those before a kill included."""
    trained = json.loads((training / "model" / "finetuning.json").read_text(encoding="utf-8"))
    return float(trained["training_seconds"])


def let_go(training: Path) -> None:
    """Remove the weights of a model that has been measured."""
    for name in ("model", "checkpoints"):
        shutil.rmtree(training / name, ignore_errors=True)

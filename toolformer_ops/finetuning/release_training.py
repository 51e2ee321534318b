"""Train a model on a release that lies in a local folder, and write the folder that is published.

Needs neither Postgres nor S3; `stages/finetuning.py` fetches the release, chooses the development documents and publishes.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.finetuning.model_card import write_model_card
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.finetuning.sequences import TokenSequences
from toolformer_ops.finetuning.training import TrainedModel, load_base_model, passes, train
from toolformer_ops.release_format import read_release
from toolformer_ops.stage_models import split_revision

logger = logging.getLogger(__name__)


def train_on_release(
    settings: Settings,
    recipe: FinetuningRecipe,
    model: str,
    release_dir: Path,
    dev_texts: Sequence[str],
    folder: Path,
    device_batch: int,
) -> TrainedModel:
    """Train `model` (a folder, or hub id@revision) by `recipe`; the files to publish lie in the result's directory.

    `dev_texts` are the development documents. `folder` holds all that the training writes. `device_batch` is the
    number of sequences that fit into one forward pass. `recipe.without_calls` trains the baseline on the plain texts.

    Raises:
        ModelError: the model is not there, or its vocabulary cannot write a call.
        TrainingError: the loss stopped being a finite number.
    """
    name, revision = split_revision(model)
    base = load_base_model(settings, name, revision)
    length = min(recipe.length, base.max_positions)
    sequences = TokenSequences.of(
        read_release(release_dir), base.tokenization, length, without_calls=recipe.without_calls
    )
    texts = sum(1 for _ in read_release(release_dir))
    logger.info(
        "training %s on release %s%s: %d texts, %d sequences of at most %d tokens, %d tokens in all; %d steps of %d sequences "
        "see each %.1f times",
        recipe.base_model, recipe.release_id, " without calls" if recipe.without_calls else "", texts, len(sequences),
        length, sequences.tokens, recipe.steps, recipe.batch, passes(recipe, sequences),
    )  # fmt: skip
    trained = train(settings, recipe, base, sequences, folder, device_batch)
    record = {
        "model_id": recipe.model_id,
        "release_id": recipe.release_id,
        "definition": recipe.definition,
        "texts": texts,
        "sequences": len(sequences),
        "training_loss_nats_per_token": trained.training_loss,
        "training_seconds": round(trained.seconds, 1),
        "precision": trained.precision,
        "device": settings.device,
    }
    write_model_card(record, trained.directory)
    return trained

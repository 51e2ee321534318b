"""Finetune the run's language model on the run's release, and publish it on S3 (Toolformer, section 2 and appendix B).

Owns `finetuned_models` and `run_models`. A model is named by the release, the model it starts from and the numbers of the
training, so two finetunes of one release under one recipe are one model, and the second finds it there. A run may have a second
model, the paper's baseline: the same texts without their calls. `finetune` leaves the trained files on S3 with a draft of
their manifest, where nobody takes them for a model; `publish` writes the manifest itself and then the row. So the two may run on
different machines, and either may be killed and run again: training goes on from its last checkpoint in the state folder.
At most `max_examples_per_tool` texts a tool are in a release, which `sql/queries/release_choose_calls.sql` sees to; nothing
is left out here. How training goes is `finetuning/`'s business.
"""

import fcntl
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import NothingToReleaseError, ObjectNotFoundError, ParameterError, RecipeMismatchError
from toolformer_ops.finetuning.model_card import DEFINITION
from toolformer_ops.finetuning.recipe import FinetuningRecipe
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.runs.models import split_revision
from toolformer_ops.storage import database
from toolformer_ops.storage.object_store import ObjectStore
from toolformer_ops.storage.publication import Manifest

logger = logging.getLogger(__name__)

PREFIX = "models"
DRAFT = "draft.json"


@dataclass(frozen=True)
class FinetuningRun:
    """What a run asks for."""

    run_id: str
    choices: RunChoices
    recipe: FinetuningRecipe
    release_prefix: str
    """Where the release lies in the bucket."""


def model_prefix(model_id: str) -> str:
    """Where a model lies in the bucket."""
    return f"{PREFIX}/{model_id}"


def load_finetuning_run(
    settings: Settings, store: ObjectStore, run_id: str, *, without_calls: bool = False
) -> FinetuningRun:
    """The run with its release, and the recipe of its model that uses tools or of its baseline.

    Raises:
        ParameterError: there is no such run.
        NothingToReleaseError: it has no release, or one without texts.
    """
    with database.transaction(database.connect(settings)) as connection:
        runs = database.fetch_all(connection, "run_by_id", run_id=run_id)
        releases = database.fetch_all(connection, "release_of_run", run_id=run_id)
    if not runs:
        raise ParameterError(f"--run: expected a started run, found {run_id!r}. Run `toolformer-ops stage start-run`.")
    if not releases or not releases[0].documents:
        found = "one without texts" if releases else "none"
        raise NothingToReleaseError(
            f"run {run_id}: expected a release with texts to train on, found {found}. No model is trained or published. "
            "The view threshold_counts shows what lower thresholds would keep."
        )
    choices = RunChoices.parse(runs[0].parameters)
    recipe = FinetuningRecipe(
        release_id=releases[0].release_id,
        base_model=runs[0].model_identity,
        choices=choices.part(FinetuningChoices),
        without_calls=without_calls,
    )
    return FinetuningRun(run_id, choices, recipe, store.key_of(releases[0].uri))


def finetune(settings: Settings, run_id: str, *, without_calls: bool = False) -> str:
    """Train unless this very model is there already; returns the model's id. `without_calls`: the baseline.

    Raises:
        ParameterError, NothingToReleaseError: there is no run, or nothing to train on.
        RecipeMismatchError: the base model is not the one that the run was started with.
        ModelError: the base model is not there.
        ObjectStoreError: the release cannot be read, or the model not be written.
    """
    store = ObjectStore(settings)
    store.require_bucket()
    run = load_finetuning_run(settings, store, run_id, without_calls=without_calls)
    model_id = run.recipe.model_id
    folder = settings.state_dir / "finetuning" / model_id
    with _alone(folder):
        if _is_trained(store, model_id):
            return model_id
        files = _train(settings, store, run, folder)
        manifest = store.upload(model_prefix(model_id), files)
        # Of two machines that train it at once the first draft is the model; no manifest names the files of the other.
        store.put_if_absent(f"{manifest.prefix}/{DRAFT}", manifest.to_bytes())
        shutil.rmtree(folder)
    logger.info("model %s lies in %s, not published yet", model_id, store.uri(manifest.folder))
    return model_id


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process of this machine trains this model; a killed one holds nobody up."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process trains model %s: waiting for it", folder.name)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_trained(store: ObjectStore, model_id: str) -> bool:
    if store.read_manifest(model_prefix(model_id)) is not None:
        logger.info("model %s is published already: nothing to train", model_id)
        return True
    if store.exists(f"{model_prefix(model_id)}/{DRAFT}"):
        logger.info("model %s is trained already and waits to be published", model_id)
        return True
    return False


def _train(settings: Settings, store: ObjectStore, run: FinetuningRun, folder: Path) -> dict[str, Path]:
    """Read the release, train, and return the files of the model by name."""
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model import model_identity

    recipe = run.recipe
    name, revision = split_revision(run.choices.model)
    identity = model_identity(name, revision)
    if identity != recipe.base_model:
        raise RecipeMismatchError(
            f"run {run.run_id} was started with the model {recipe.base_model}, found {identity} at {name}. Put the first "
            "one back, or start a new run."
        )
    store.fetch(run.release_prefix, folder / "release")
    trained = train_on_release(
        settings,
        recipe,
        run.choices.model,
        folder / "release",
        development_texts(settings, recipe),
        folder,
    )
    files = (path for path in trained.directory.rglob("*") if path.is_file())
    return {path.relative_to(trained.directory).as_posix(): path for path in files}


def development_texts(settings: Settings, recipe: FinetuningRecipe) -> list[str]:
    """Documents of the corpus outside the release: the same ones for the model that uses tools and for the baseline."""
    with database.transaction(database.connect(settings)) as connection:
        rows = database.fetch_all(
            connection,
            "finetune_development_documents",
            release_id=recipe.release_id,
            seed=recipe.choices.seed,
            documents=recipe.choices.finetune_dev_documents,
        )
    return [row.text for row in rows]


def publish(settings: Settings, run_id: str, *, without_calls: bool = False) -> str:
    """Publish the model that `finetune` trained, and register it; returns the model's id. Publishing twice is publishing once.

    Raises:
        ParameterError: there is no such run, or its model was not trained.
        NothingToReleaseError: the run has nothing to train on.
    """
    store = ObjectStore(settings)
    run = load_finetuning_run(settings, store, run_id, without_calls=without_calls)
    prefix = model_prefix(run.recipe.model_id)
    manifest = store.read_manifest(prefix)
    if manifest is None:
        manifest = _draft(store, run)
        store.conclude(manifest)
    store.delete(f"{prefix}/{DRAFT}")
    record = json.loads(store.get(f"{manifest.folder}/{DEFINITION}"))
    with database.transaction(database.connect(settings)) as connection:
        database.execute(
            connection,
            "finetune_register",
            model_id=run.recipe.model_id,
            release_id=run.recipe.release_id,
            run_id=run_id,
            uri=store.uri(manifest.prefix),
            manifest_sha256=manifest.sha256,
            definition=run.recipe.definition,
            training_loss=record["training_loss_nats_per_token"],
            without_calls=without_calls,
            best_step=record["best_step"],
            development_perplexity=record["development_perplexity"],
        )
        database.execute(
            connection,
            "finetune_model_of_run_set",
            run_id=run_id,
            model_id=run.recipe.model_id,
            without_calls=without_calls,
        )
    logger.info("published model %s: %s", run.recipe.model_id, store.uri(manifest.folder))
    return run.recipe.model_id


def _draft(store: ObjectStore, run: FinetuningRun) -> Manifest:
    prefix = model_prefix(run.recipe.model_id)
    try:
        return Manifest.from_bytes(prefix, store.get(f"{prefix}/{DRAFT}"))
    except ObjectNotFoundError as error:
        raise ParameterError(
            f"run {run.run_id}: expected the trained model {store.uri(prefix)}, found none. Run `toolformer-ops stage "
            f"finetune --run {run.run_id}{' --without-calls' if run.recipe.without_calls else ''}` first."
        ) from error

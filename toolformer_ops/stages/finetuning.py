"""Finetune the run's language model on the run's release, and publish it on S3 (Toolformer, section 2 and appendix B).

Writes `finetuned_models` and `run_models`. A model's id is the hash of the release, the model that the
training starts from, and the choices of the training: two finetunes of one release under one recipe are one
model, and the second finds it on S3. A run may have a second model, the paper's baseline: the same texts
without their calls. `finetune` puts the trained files on S3 with a draft of their manifest, which nothing
reads as a model; `publish` writes the manifest and then the row. So the two may run on different machines,
and either may be killed and run again: training continues from its last checkpoint, in the state folder or on
S3. A model whose files are not all on S3 any more is trained again, and published anew unless the training
makes the very bytes that are missing. Every text of the release is trained on (`choosing.choose_calls` bounds
them). Training itself is in `finetuning/`.
"""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from toolformer_ops.config import Settings
from toolformer_ops.errors import CorruptObjectError, NoResultError, ObjectNotFoundError, UsageError
from toolformer_ops.finetuning.checkpoints import Snapshots
from toolformer_ops.finetuning.recipe import FinetuningRecipe, TrainingJob
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.runs.choices import FinetuningChoices, RunChoices
from toolformer_ops.runs.models import FINETUNING, require_identity
from toolformer_ops.runs.run_tools import require_run
from toolformer_ops.storage.history.forgetting import TRAININGS, training_release
from toolformer_ops.storage.machine.shared_files import locked
from toolformer_ops.storage.objects.publication import (
    MANIFEST,
    Manifest,
    ObjectStore,
    registered_sha256,
    require_registered,
)
from toolformer_ops.storage.postgres import database, queries

logger = logging.getLogger(__name__)

PREFIX = "models"
DRAFT = "draft.json"


@dataclass(frozen=True)
class FinetuningRun:
    """A run with its release and the recipe of one of its two models."""

    run_id: str
    choices: RunChoices
    recipe: FinetuningRecipe
    release_prefix: str
    """Prefix of the release's files in the bucket."""
    release_manifest_sha256: str
    """Hash of the release's manifest, as Postgres registered it."""


def model_prefix(model_id: str) -> str:
    """Prefix of a model's files in the bucket."""
    return f"{PREFIX}/{model_id}"


def load_finetuning_run(
    settings: Settings, store: ObjectStore, run_id: str, *, without_calls: bool = False
) -> FinetuningRun:
    """The run with its release, and the recipe of its model that uses tools or of its baseline.

    Raises:
        UsageError: there is no such run.
        NoResultError: it has no release, or one without texts.
    """
    with database.transaction(database.connect(settings)) as connection:
        run = require_run(connection, run_id)
        releases = database.fetch_all(connection, queries.releases.of_run, run_id=run_id)
    if not releases or not releases[0].documents:
        state = "one without texts" if releases else "none"
        raise NoResultError(
            f"run {run_id}: expected a release with texts to train on, found {state}. No model is trained or "
            "published. The view threshold_counts shows what lower thresholds would keep."
        )
    choices = RunChoices.of_run(run.parameters)
    recipe = FinetuningRecipe(
        release_id=releases[0].release_id,
        base_model=run.model_identity,
        choices=choices.part(FinetuningChoices),
        without_calls=without_calls,
    )
    return FinetuningRun(
        run_id=run_id,
        choices=choices,
        recipe=recipe,
        release_prefix=store.key_of(releases[0].uri),
        release_manifest_sha256=releases[0].manifest_sha256,
    )


def finetune(settings: Settings, run_id: str, *, without_calls: bool = False) -> str:
    """Train unless this very model exists already; returns the model's id. `without_calls`: the baseline.

    Raises:
        UsageError, NoResultError: there is no run, or nothing to train on.
        ConfigurationError: the base model is not that of the run's start.
        ModelError: the base model is not there.
        ObjectStoreError: the release cannot be read, or the model not be written.
        CorruptObjectError: the release or the model has another manifest than that which Postgres
        registered.
    """
    store = ObjectStore(settings)
    store.require_bucket()
    run = load_finetuning_run(settings, store, run_id, without_calls=without_calls)
    model_id = run.recipe.model_id
    folder = settings.state_dir / TRAININGS / model_id
    # 1. One process of this machine at a time.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock"), f"another process trains model {model_id}"):
        # 2. Nothing is left to do if all of the model is on S3, published or not.
        prefix = model_prefix(model_id)
        registered = registered_sha256(settings, store.uri(prefix))
        published, draft = store.read_manifest(prefix), store.read_manifest(prefix, DRAFT)
        if published is not None:
            require_registered(published, registered)
        elif draft is not None and registered not in (None, draft.sha256):
            draft = None  # left behind by an earlier training of a model whose manifest is lost
        earlier = published or draft
        if earlier is not None:
            lost = store.lacking(earlier)
            if not lost:
                state = "is published" if published else "is trained and waits to be published"
                logger.info("model %s %s: nothing to train", model_id, state)
                return model_id
            named = ", ".join(file.name for file in lost)
            logger.warning("model %s has lost %s on S3: it is trained again", model_id, named)
        # 3. Train and upload. Of two machines that train it at once the first draft is the model; no manifest
        # names the files of the other. Files were lost: times in the logs make other bytes, so that mostly a
        # new draft replaces what there was.
        files = trained_files(settings, store, run, folder)
        if earlier is None or store.mend(earlier, files):
            manifest = Manifest.of(prefix, files)
            store.upload(manifest, files)
            if earlier is not None or registered is not None:
                engine = database.connect(settings)
                database.execute(engine, queries.forgetting.withdraw_model, publication_id=model_id)
                store.remove([f"{prefix}/{MANIFEST}", f"{prefix}/{DRAFT}"])
            store.put_if_absent(f"{prefix}/{DRAFT}", manifest.to_bytes())
        if settings.sends_checkpoints:
            Snapshots(settings, model_id).forget()
        shutil.rmtree(folder)
    logger.info("model %s is in %s, trained", model_id, store.uri(prefix))
    return model_id


def trained_files(
    settings: Settings, store: ObjectStore, run: FinetuningRun, folder: Path
) -> dict[str, Path]:
    """Train on the run's release in `folder`; returns the files of the model by name.

    Raises:
        ConfigurationError: the base model is not that of the run's start, or a package that the
        training needs is not installed.
        ModelError: the base model is not there.
    """
    from toolformer_ops.finetuning.adapter import require_installed
    from toolformer_ops.finetuning.release_training import train_on_release
    from toolformer_ops.language_model.models import model_identity

    recipe = run.recipe
    require_installed(recipe.choices)  # before anything is fetched
    name, revision = split_revision(run.choices.model)
    identity = model_identity(name, revision, read=True, settings=settings)
    require_identity(f"run {run.run_id} was started", recipe.base_model, identity, name)
    release = folder / training_release(recipe.release_id)
    store.fetch(run.release_prefix, release, run.release_manifest_sha256)
    job = TrainingJob(
        recipe=recipe,
        model=run.choices.model,
        release_dir=release,
        dev_texts=development_texts(settings, recipe),
        folder=folder,
    )
    trained = train_on_release(settings, job)
    files = (path for path in trained.directory.rglob("*") if path.is_file())
    return {path.relative_to(trained.directory).as_posix(): path for path in files}


def development_texts(settings: Settings, recipe: FinetuningRecipe) -> tuple[str, ...]:
    """Documents of the corpus outside the release: the same ones for the model that uses tools and for the baseline."""
    rows = database.fetch_all(
        database.connect(settings),
        queries.finetuning.development_documents,
        release_id=recipe.release_id,
        seed=recipe.choices.seed,
        documents=recipe.choices.finetune_dev_documents,
    )
    return tuple(row.text for row in rows)


def publish(settings: Settings, run_id: str, *, without_calls: bool = False) -> str:
    """Publish the model that `finetune` trained, and register it; returns the model's id.

    Publishing twice is publishing once.

    Raises:
        UsageError: there is no such run, or its model was not trained.
        NoResultError: the run has nothing to train on.
        ObjectNotFoundError, CorruptObjectError: a file of the model is lost or changed; `finetune` trains it
        again.
    """
    store = ObjectStore(settings)
    run = load_finetuning_run(settings, store, run_id, without_calls=without_calls)
    prefix = model_prefix(run.recipe.model_id)
    command = f"toolformer-ops stage finetune --run {run_id}{' --without-calls' if without_calls else ''}"
    manifest = store.read_manifest(prefix) or store.read_manifest(prefix, DRAFT)
    if manifest is None:
        raise UsageError(
            f"run {run_id}: expected the trained model {store.uri(prefix)}, found none. Run `{command}` "
            "first."
        )
    require_registered(manifest, registered_sha256(settings, store.uri(prefix)))
    try:
        store.conclude(manifest)
    except (ObjectNotFoundError, CorruptObjectError) as error:
        raise type(error)(f"{error} Run `{command}`, which trains the model again.") from error
    definition = store.read_file(manifest, FINETUNING)
    if definition is None:
        raise CorruptObjectError(
            f"{manifest.key}: expected a file {FINETUNING}, found none. Run `{command}`."
        )
    record = json.loads(definition)
    with database.transaction(database.connect(settings)) as connection:
        database.execute(
            connection,
            queries.finetuning.register,
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
            queries.finetuning.model_of_run_set,
            run_id=run_id,
            model_id=run.recipe.model_id,
            without_calls=without_calls,
        )
    store.delete(f"{prefix}/{DRAFT}")
    logger.info("published model %s: %s", run.recipe.model_id, store.uri(manifest.folder))
    return run.recipe.model_id

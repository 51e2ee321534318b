"""Load the language model that a user or a run names; a run's must be the one that the run was started with."""

import json
import logging
import time
from typing import TYPE_CHECKING

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.language_model.models.identity import S3, local_folder, published_model
from toolformer_ops.records import VerifyInFloat32
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.rounding import allow_measured_rounding, allow_rounding_without_database
from toolformer_ops.runs.run_tools import RunTool
from toolformer_ops.runs.start_up import StartUp
from toolformer_ops.storage.publication import ObjectStore

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel
    from toolformer_ops.language_model.tokenization import Tokenization

logger = logging.getLogger(__name__)

FINETUNING = "finetuning.json"
"""The file of a finetuned model that says what decides it."""


def split_revision(model: str) -> tuple[str, str | None]:
    """A model as the form takes it: a path, `hub/id@revision` or `s3://bucket/models/name`, as (path, id or address, revision)."""
    if model.startswith(S3):
        return model, None
    name, at, revision = model.rpartition("@")
    return (name, revision) if at and "/" not in revision else (model, None)


def load_model(settings: Settings, model: str) -> "LanguageModel":
    """The model, given as `split_revision` takes it, on the device of the settings.

    Raises:
        ModelError: it is not there.
    """
    from toolformer_ops.language_model import LanguageModel

    name, revision = split_revision(model)
    return LanguageModel.load(
        name,
        revision=revision,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        settings=settings,
    )


def load_scoring_model(settings: Settings, model: str, verify: VerifyInFloat32 = "auto") -> "LanguageModel":
    """The same, for scoring without a database: with the rounding of a low-precision format measured as a run would measure it.

    `verify` is the choice `verify_in_float32`.

    Raises:
        ModelError: it is not there.
    """
    loaded = load_model(settings, model)
    allow_rounding_without_database(settings, loaded, verify)
    return loaded


def load_tokenization(settings: Settings, model: str) -> "Tokenization":
    """How the model reads text: its tokenizer alone, which loads in a second; the network takes many.

    Raises:
        ModelError: there is no such model.
    """
    from toolformer_ops.language_model.models.loading import load_tokenizer
    from toolformer_ops.language_model.tokenization import Tokenization

    return Tokenization(load_tokenizer(*split_revision(model), settings))


def with_sample_end(settings: Settings, choices: RunChoices) -> RunChoices:
    """The choices; samples end at the arrow if that was left open and the model was finetuned without the results of calls.

    A model's `finetuning.json` says so, in its folder or on S3. A hub model's is not looked at: a run without a network would
    have another recipe.

    Raises:
        ModelError: the model is not there.
        CorruptObjectError, ObjectStoreError: its file on S3 was changed, or S3 cannot be reached.
    """
    if choices.sample_until is not None:
        return choices
    name, _ = split_revision(choices.model)
    found: str | bytes | None = None
    if name.startswith(S3):
        found = ObjectStore(settings).read_file(published_model(name, settings).manifest, FINETUNING)
    elif (folder := local_folder(name, settings)) is not None and (folder / FINETUNING).is_file():
        found = (folder / FINETUNING).read_text(encoding="utf-8")
    masked = found is not None and json.loads(found)["definition"].get("finetune_results") == "mask"
    return choices.model_copy(update={"sample_until": "arrow"}) if masked else choices


def require_identity(what: str, expected: str, found: str, address: str) -> None:
    """Refuse a model that is no longer the one that something was made with; `what` begins the message: `run X was started`.

    Raises:
        ConfigurationError: the weights or the tokenizer at `address` have another identity.
    """
    if found != expected:
        raise ConfigurationError(
            f"{what} with the model {expected}, found {found} at {address}. Put the first one back, or start a new run."
        )


class RunModel:
    """The language model of one run, loaded when a stage first asks for it, and kept for the stages after it in this process."""

    def __init__(self, settings: Settings, start_up: StartUp | None = None) -> None:
        self._settings = settings
        self._model: LanguageModel | None = None
        self.start_up = start_up
        """What the process took to start, if that is measured."""

    def of(self, run: RunTool) -> "LanguageModel":
        """The model; all calls name the same run.

        Raises:
            As `load_run_model`.
        """
        if self._model is None:
            started = time.perf_counter()
            self._model = load_run_model(self._settings, run)
            if self.start_up is not None:
                self.start_up.has_loaded(time.perf_counter() - started)
        return self._model


def load_run_model(settings: Settings, run: RunTool) -> "LanguageModel":
    """The model of the run's choices, on the device of the settings.

    Raises:
        ModelError: it is not there.
        ConfigurationError: its weights or tokenizer are others than when the run started.
    """
    model = load_model(settings, run.choices.model)
    require_identity(f"run {run.run_id} was started", run.model_identity, model.identity, run.choices.model)
    allow_measured_rounding(settings, model, run.choices.verify_in_float32)
    logger.info("loaded %s on %s in %s", model.identity, settings.device, settings.dtype)
    return model

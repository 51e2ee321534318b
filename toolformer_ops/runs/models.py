"""Load the language model that a user or a run names.

That of a run must be the model that the run was started with.
"""

import contextlib
import functools
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError
from toolformer_ops.language_model.endpoint.answers import AnswerStore, FileAnswers
from toolformer_ops.language_model.endpoint.client import Client
from toolformer_ops.language_model.endpoint.endpoint_file import PREFIX, Endpoint, read_endpoint
from toolformer_ops.language_model.endpoint.proposals import EndpointProposer
from toolformer_ops.language_model.endpoint.stored_answers import DatabaseAnswers
from toolformer_ops.language_model.losses import KeepRule
from toolformer_ops.language_model.models.identity import S3, local_folder, published_model, split_revision
from toolformer_ops.records import FLOAT32, VerifyInFloat32
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.micro_batches import StartUp
from toolformer_ops.runs.recipes import proposer_identity
from toolformer_ops.runs.rounding import allow_measured_rounding, allow_rounding_without_database
from toolformer_ops.runs.run_tools import RunTool, require_run_tool
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database
from toolformer_ops.tools.base import Proposer, ToolRunner
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.retrieval.wiki_index import with_index_of

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel
    from toolformer_ops.language_model.tokenization import Tokenization, TokenizedText

logger = logging.getLogger(__name__)

FINETUNING = "finetuning.json"
"""The file of a finetuned model that says what decides it."""


def load_model(settings: Settings, model: str) -> "LanguageModel":
    """The model, given as `split_revision` takes it, on the device of the settings.

    Raises:
        ModelError: it is not there.
    """
    from toolformer_ops.language_model.model import LanguageModel

    name, revision = split_revision(model)
    return LanguageModel.load(
        name,
        revision=revision,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        settings=settings,
    )


def load_scoring_model(
    settings: Settings, model: str, verify: VerifyInFloat32 = "auto", keep_rule: KeepRule = "paper"
) -> "LanguageModel":
    """Load a model for scoring without a database: with the rounding of a low-precision format measured as a run would measure it.

    `verify` is the choice `verify_in_float32`.

    Raises:
        ModelError: it is not there.
    """
    loaded = load_model(settings, model)
    if loaded.number_format != FLOAT32:
        allow_rounding_without_database(settings, loaded, verify, keep_rule)
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
    """The choices.

    Samples end at the arrow if that was left open and the language model samples and learned without results of
    calls. A model's `finetuning.json` says so, in its folder or on S3. A hub model's is not looked at: a run
    without a network would have another recipe.

    Raises:
        ModelError: the model is not there.
        CorruptObjectError, ObjectStoreError: its file on S3 was changed, or S3 cannot be reached.
    """
    if choices.sample_until is not None or choices.endpoint or not choices.model_proposes:
        return choices
    name, _ = split_revision(choices.model)
    record: str | bytes | None = None
    if name.startswith(S3):
        record = ObjectStore(settings).read_file(published_model(name, settings).manifest, FINETUNING)
    elif (folder := local_folder(name, settings)) is not None and (folder / FINETUNING).is_file():
        record = (folder / FINETUNING).read_text(encoding="utf-8")
    masked = record is not None and json.loads(record)["definition"].get("finetune_results") == "mask"
    return choices.model_copy(update={"sample_until": "arrow"}) if masked else choices


def require_identity(what: str, expected: str, actual: str, address: str) -> None:
    """Refuse a model that is no longer that which something was made with.

    `what` begins the message: `run X was started`.

    Raises:
        ConfigurationError: the weights or the tokenizer at `address` have another identity.
    """
    if actual != expected:
        raise ConfigurationError(
            f"{what} with the model {expected}, found {actual} at {address}. Put the first one back, or "
            "start a new run."
        )


def endpoint_beside(settings: Settings, choices: RunChoices) -> EndpointProposer | None:
    """The proposer behind an endpoint, without a database: it has answered for one token, and its answers are kept in the cache.

    It is None if the run names none.

    Raises:
        ConfigurationError: its file or its key is not there.
        ModelError: its address, model or key is wrong, or it is away.
    """
    if choices.endpoint is None:
        return None
    endpoint = read_endpoint(settings, choices.endpoint)
    proposer = _proposer_behind(
        settings, choices.endpoint, endpoint, FileAnswers(settings, endpoint.identity)
    )
    proposer.check()
    return proposer


def require_endpoint(settings: Settings, choices: RunChoices) -> Endpoint | None:
    """The endpoint that proposes calls in a run, which has answered for one token.

    None if the run names none. Raises as `endpoint_beside`.
    """
    if choices.endpoint is None:
        return None
    endpoint = read_endpoint(settings, choices.endpoint)
    _client_of(settings, choices.endpoint, endpoint).check()
    return endpoint


def _proposer_behind(
    settings: Settings, address: str, endpoint: Endpoint, answers: AnswerStore
) -> EndpointProposer:
    return EndpointProposer(endpoint, _client_of(settings, address, endpoint), answers)


def _client_of(settings: Settings, address: str, endpoint: Endpoint) -> Client:
    name = address.removeprefix(PREFIX)
    return Client(endpoint, name=name, patience_seconds=settings.outage_seconds)


class RunModel:
    """The language model and tools of one run, each loaded when a stage first asks for it and kept for later ones."""

    def __init__(self, settings: Settings, start_up: StartUp | None = None) -> None:
        self._settings = settings
        self._model: LanguageModel | None = None
        self._tokenization: Tokenization | None = None
        self._tools: dict[str, Callable[[], ToolRunner]] = {}
        self._proposers: dict[str, Proposer] = {}
        self._up_to: uuid.UUID | None = None
        self.start_up = start_up
        """What the process took to start, if that is measured."""

    @functools.cached_property
    def engine(self) -> Engine:
        """On the factory's database, for all stages of this process. Raises as `database.connect`."""
        return database.connect(self._settings)

    def run_tool(self, run_id: str, tool_name: str) -> RunTool:
        """The registered run as it is stored now, up to `works_up_to`. Raises as `open_run_tool`."""
        run = require_run_tool(self.engine, run_id, tool_name)
        return run if self._up_to is None else replace(run, last_document_id=self._up_to)

    @contextlib.contextmanager
    def works_up_to(self, document_id: uuid.UUID) -> Iterator[None]:
        """Stages within the block do the texts with an id up to this one."""
        self._up_to = document_id
        try:
            yield
        finally:
            self._up_to = None

    def endpoint_of(self, run: RunTool) -> EndpointProposer | None:
        """The proposer behind an endpoint, whose answers are kept in the database; None if the run has none.

        Raises:
            ConfigurationError: its file or its key is not there, or it is another one than when the run
            started.
        """
        address = run.choices.endpoint
        if address is None:
            return None
        endpoint = read_endpoint(self._settings, address)
        require_identity(
            f"run {run.run_id} was started", str(run.proposer_identity), endpoint.identity, address
        )
        answers = DatabaseAnswers(self.engine, endpoint.identity)
        return _proposer_behind(self._settings, address, endpoint, answers)

    def proposer_of(self, run: RunTool) -> Proposer:
        """The tool as it proposes the run's calls, opened when it is first asked for.

        Raises:
            ToolError: what it makes its proposals from is not there, or too large.
            ConfigurationError: it would propose other calls than when the run started.
        """
        if run.tool not in self._proposers:
            tool = get_tool(run.tool)
            identity = proposer_identity(self._settings, run.choices, tool)
            if identity != run.proposer_identity:
                raise ConfigurationError(
                    f"run {run.run_id} was started with the proposer {run.proposer_identity}, found "
                    f"{identity}: what its calls are made from changed meanwhile. Start a new run."
                )
            self._proposers[run.tool] = tool.open_proposer(self._settings)
        return self._proposers[run.tool]

    def tokenize_of(self, run: RunTool) -> "Callable[[str], TokenizedText]":
        """How the run's language model reads a text; its network is not loaded for it.

        Raises:
            ModelError: the model is not there.
            ConfigurationError: its weights or tokenizer are others than when the run started.
        """
        if self._model is not None:
            return self._model.tokenize
        if self._tokenization is None:
            from toolformer_ops.language_model.models import model_identity

            name, revision = split_revision(run.choices.model)
            identity = model_identity(name, revision, annotates=True, settings=self._settings)
            require_identity(f"run {run.run_id} was started", run.model_identity, identity, run.choices.model)
            self._tokenization = load_tokenization(self._settings, run.choices.model)
        return self._tokenization.tokenize

    def of(self, run: RunTool) -> "LanguageModel":
        """The language model; all calls name the same run. Raises as `load_run_model`."""
        if self._model is None:
            started = time.perf_counter()
            self._model = load_run_model(self._settings, run)
            if self.start_up is not None:
                self.start_up.has_loaded(time.perf_counter() - started)
        return self._model

    def tool_of(self, run: RunTool) -> Callable[[], ToolRunner]:
        """A function that returns the run's open tool; it is opened by the first call.

        Raises:
            UsageError: an index or model is not there.
            ConfigurationError: the tool is not that of the run's start.
        """
        if run.tool not in self._tools:
            tool, settings = get_tool(run.tool), with_index_of(self._settings, run.tool_version)
            version = tool.version(settings, run.model_identity)
            if version != run.tool_version:
                raise ConfigurationError(
                    f"run {run.run_id} was started with {run.tool} version {run.tool_version}, found "
                    f"{version}: its code, index or model changed meanwhile. Start a new run; what was "
                    "sampled is used again."
                )
            self._tools[run.tool] = functools.cache(lambda: tool.open(settings, lambda: self.of(run)))
        return self._tools[run.tool]


def load_run_model(settings: Settings, run: RunTool) -> "LanguageModel":
    """The language model of the run's choices on the device of the settings.

    Raises:
        ModelError: it is not there.
        ConfigurationError: its weights or tokenizer are others than when the run started.
    """
    model = load_model(settings, run.choices.model)
    require_identity(f"run {run.run_id} was started", run.model_identity, model.identity, run.choices.model)
    if model.number_format != FLOAT32:
        choices = run.choices
        allow_measured_rounding(settings, model, choices.verify_in_float32, choices.keep_rule)
    logger.info("loaded %s on %s in %s", model.identity, settings.device, settings.dtype)
    return model

"""Register a run: its choices, its recipes, its costs, its end.

Owns `annotation_runs`, `run_tools` and `run_releases`.

Everything that later stages need to know is in these rows, so that their arguments are ids. `start_run`
registers a run that annotates a corpus. `start_finetuning` registers a run that finetunes and evaluates on a
release that exists: it annotates nothing, and so has no rows in `run_tools`. Registering the same run twice
is one registration; with other choices, or by code that would write other rows, it is an error. So is a run
that belongs to another DAG run (`runs/owners.py`), whose end is not written either.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from toolformer_ops import __version__
from toolformer_ops.config import Settings
from toolformer_ops.errors import ConfigurationError, CorpusError, UsageError
from toolformer_ops.evaluation.overlap import question_sets
from toolformer_ops.language_model.endpoint.endpoint_file import Endpoint
from toolformer_ops.language_model.models.identity import split_revision
from toolformer_ops.runs.choices import CHOSEN_ANEW, FinetuningChoices, RunChoices, values_in
from toolformer_ops.runs.models import require_endpoint, require_identity, with_sample_end
from toolformer_ops.runs.numbers import store_numbers
from toolformer_ops.runs.owners import COMMAND_LINE, DagRun, owner_of
from toolformer_ops.runs.placebo_pools import known_pool
from toolformer_ops.runs.placebo_rates import store_missing_rates
from toolformer_ops.runs.recipes import (
    Recipe,
    proposer_identity,
    require_proposing_tools,
    store_recipe,
    tool_recipes,
)
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE, load_run_tool
from toolformer_ops.runs.summary import summarise
from toolformer_ops.storage.corpora.addresses import corpus_id_of, corpus_uri_of
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, partitions, queries
from toolformer_ops.storage.postgres.in_use import (
    keep_results,
    keep_texts,
    require_unforgotten,
    require_whole_texts,
)
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool, tools_on_device

logger = logging.getLogger(__name__)

RUN_STATES = ("success", "failed")
RUNNING = "running"
"""The state of a run that is started and not finished."""
ENDED = "ended by a person, or by its time limit."
"""The problem of a run if nothing else is known."""


@dataclass(frozen=True)
class RunDefinition:
    """What an annotation run is registered with, looked up before any of its work."""

    choices: RunChoices
    """With the end of samples that its model needs."""
    corpus_uri: str
    model_identity: str
    endpoint: Endpoint | None
    """The server that proposes its calls, if one does."""
    chained_release: str | None
    """The id of the release over whose texts a run with chains goes."""
    tools: Mapping[str, Tool]
    versions: Mapping[str, str]
    """The version of each tool."""
    thresholds: Mapping[str, float]
    """From which loss reduction on each tool's calls are kept, nats."""
    recipes: Mapping[str, Sequence[Recipe]]
    """The recipes of each tool."""

    @classmethod
    def of(cls, settings: Settings, choices: RunChoices) -> "RunDefinition":
        """Look up the corpus, model, prompts and indices that `choices` name.

        Raises:
            As `start_run`.
        """
        from toolformer_ops.language_model.models import model_identity

        # 1. What can be refused by the choices alone, and the data with which the release is compared.
        thresholds = choices.kept_from()
        require_proposing_tools(choices)
        if address := choices.compared_with():
            question_sets(settings, address)  # read whole: the release, hours later, needs all of it
        # 2. The model and the tools.
        choices = with_sample_end(settings, choices)
        uri = corpus_uri_of(choices.corpus_address)
        tools = {name: get_tool(name) for name in choices.tools}
        identity = model_identity(*split_revision(choices.model), annotates=True, settings=settings)
        endpoint = require_endpoint(settings, choices)
        _require_trainable(settings, choices)
        versions = {name: tool.version(settings, identity) for name, tool in tools.items()}
        # 3. The recipes.
        chained = chained_release(settings, uri) if choices.chains else None
        recipes = {
            name: tool_recipes(
                spec=tool.spec,
                prompt_text=tool.prompt,
                tool_version=versions[name],
                model_identity=identity,
                dtype=settings.dtype,
                choices=choices,
                chained_release=chained,
                proposer_identity=proposer_identity(settings, choices, tool),
            )
            for name, tool in tools.items()
        }
        return cls(
            choices=choices,
            corpus_uri=uri,
            model_identity=identity,
            endpoint=endpoint,
            chained_release=chained,
            tools=tools,
            versions=versions,
            thresholds=thresholds,
            recipes=recipes,
        )


def start_run(
    settings: Settings,
    run_id: str,
    choices: RunChoices,
    schedule: str | None = None,
    dag_run: DagRun | None = None,
) -> list[str]:
    """Write the run's rows; returns the names of its tools.

    `schedule` names the schedule that started it, if one did; `dag_run` is the DAG run that opens it, None
    for a person at the command line.

    Everything that a later stage would miss (corpus, model, prompts, indices) is looked for here, before any
    GPU work.

    Raises:
        CorpusError: the corpus was not ingested.
        EvaluationDataError: the release is to be compared with evaluation data, and they are not there, or of
        another format.
        UsageError: a tool, index or model is not there; the model cannot have the adapters that are to be
            trained; a keep threshold is below `prune_below`, or is for a tool that was not chosen; or the run
            asks for nats for each second, and it is not known what a call of a tool takes.
        ConfigurationError: the run exists with other choices or recipes, or belongs to another DAG run.
        ObjectStoreError: with `chains`, S3 does not answer.
        InfrastructureError: one of its texts is being forgotten.
    """
    definition = RunDefinition.of(settings, choices)
    corpus_id = corpus_id_of(definition.corpus_uri)
    with database.transaction(database.connect(settings)) as connection:
        keep_texts(connection)
        keep_results(connection)
        # 1. The corpus: its newest version, and of that the first documents up to the limit. A registered run
        #    keeps its own.
        newest = _require_corpus(connection, definition.corpus_uri)
        ordinal_limit = _ordinal_limit(connection, corpus_id, newest.version, choices.document_limit)
        # 2. The run with its tools.
        if definition.endpoint:
            _register_endpoint(connection, definition.endpoint)
        _register_run(
            connection,
            settings,
            run_id,
            definition.choices,
            corpus_id=corpus_id,
            corpus_uri=definition.corpus_uri,
            corpus_version=newest.version,
            ordinal_limit=ordinal_limit,
            model_identity=definition.model_identity,
            dag_run=dag_run,
            schedule=schedule,
            chained_release_id=definition.chained_release,
        )
        # In one order, whatever the choices have: two runs with the same tools wait for each other's partitions.
        for name, tool in sorted(definition.tools.items()):
            _register_tool(
                connection,
                run_id,
                definition.choices,
                definition.recipes[name],
                tool=name,
                tool_version=definition.versions[name],
                keep_threshold=definition.thresholds[name],
                reads_record=tool.spec.reads_record,
            )
        # 3. No text may be on its way out.
        require_whole_texts(connection, run_id)
    logger.info(
        "run %s: %s over %s with %s",
        run_id,
        ", ".join(definition.tools),
        choices.corpus_address,
        definition.model_identity,
    )
    if schedule:
        # A schedule has one run at a time: another that is open here is over in Airflow, and was ended before
        # it was finished.
        engine = database.connect(settings)
        for row in database.fetch_all(
            engine, queries.runs.running_of_schedule, schedule=schedule, run_id=run_id
        ):
            close_run(settings, row.run_id)
    return list(definition.tools)


def _ordinal_limit(
    connection: Connection, corpus_id: str, version: int, document_limit: int | None
) -> int | None:
    """The ordinal of the first document beyond a run's limit; None if the run takes all of the version."""
    if not document_limit:
        return None
    beyond = database.fetch_all(
        connection,
        queries.runs.ordinal_limit,
        corpus_id=corpus_id,
        version=version,
        document_limit=document_limit,
    )
    return beyond[0].ordinal if beyond else None


def _register_endpoint(connection: Connection, endpoint: Endpoint) -> None:
    """Write the server that proposes a run's calls, unless an earlier run has."""
    parameters = {"answers_per_request": endpoint.answers_per_request, "extra": endpoint.extra}
    database.execute(
        connection,
        queries.proposers.register,
        proposer=endpoint.identity,
        parameters=json.dumps(parameters),
        **endpoint.model_dump(include={"model", "api", "licence"}),
    )


def _require_trainable(settings: Settings, choices: RunChoices) -> None:
    """Refuse a run whose model cannot be finetuned as it chooses.

    Raises:
        UsageError: names the choice, and what the model has.
    """
    if choices.finetune and choices.finetune_method == "lora":
        from toolformer_ops.finetuning.adapter import require_trainable

        require_trainable(settings, choices.part(FinetuningChoices), choices.model)


def _require_corpus(connection: Connection, uri: str) -> Row[Any]:
    """The newest version of an ingested corpus that has a document.

    Raises:
        CorpusError: there is none.
    """
    corpora = database.fetch_all(connection, queries.corpora.by_id, corpus_id=corpus_id_of(uri))
    if not corpora:
        raise CorpusError(
            f"expected an ingested corpus {uri}, found none. Run `toolformer-ops stage ingest --corpus "
            f"{uri}` first."
        )
    if not corpora[0].has_documents:
        raise CorpusError(
            f"expected at least one usable record in {uri}, found none; the first was refused as "
            f"{corpora[0].first_reason}: {corpora[0].first_detail}. The table rejected_documents says why "
            "each was."
        )
    return database.fetch_one(connection, queries.corpora.versions, corpus_id=corpus_id_of(uri), at_most=1)


def _register_tool(
    connection: Connection,
    run_id: str,
    choices: RunChoices,
    recipes: Sequence[Recipe],
    *,
    tool: str,
    **columns: object,
) -> None:
    """Write a tool of the run: its recipes, its row, its pool of placebos, the partitions of its rows.

    Raises:
        ConfigurationError: the run was started with other recipes.
    """
    # 1. The recipes.
    for recipe in recipes:
        store_recipe(connection, recipe)
    # 2. The row of the tool, with its recipes.
    ids = {RECIPE_OF_STAGE[recipe.stage]: recipe.recipe_id for recipe in recipes}
    database.execute(
        connection,
        queries.runs.insert_tool,
        run_id=run_id,
        tool=tool,
        prune_below=choices.prune_below,
        keep_rule=choices.keep_rule,
        **columns,
        **ids,
    )
    registered = load_run_tool(connection, run_id, tool)
    changed = [column for column, recipe_id in ids.items() if getattr(registered, column) != recipe_id]
    if changed:
        raise ConfigurationError(
            f"run {run_id}, {tool}: {', '.join(changed)} are not those the run was started with, because the "
            "code, the model or the index changed meanwhile. Start a new run."
        )
    # 3. The pool of its placebos, if an earlier run drew a fitting one.
    if registered.placebo_recipe_id is None and choices.wants_placebos:
        known_pool(connection, registered, choices)
    # 4. The partitions of its rows.
    for recipe in recipes:
        partitions.ensure_partitions(connection, recipe.stage, recipe.recipe_id)


def chained_release(settings: Settings, corpus_uri: str) -> str:
    """The id of the release over whose texts a run with chains goes.

    The corpus has to be a release that Postgres knows, in the bytes that were published: its calls are taken
    for calls that were made, and a text from elsewhere could only claim that.

    Raises:
        UsageError: the corpus is no release, or one of a run with chains.
        CorpusError: its files are not those of the release.
    """
    releases = database.fetch_all(
        database.connect(settings),
        queries.runs.chained_release,
        uri=corpus_uri,
        corpus_id=corpus_id_of(corpus_uri),
    )
    if not releases:
        raise UsageError(
            f"chains: expected the s3:// address of a release as the corpus, found {corpus_uri}. "
            "`dataset_releases.uri` holds the addresses of releases that are not withdrawn."
        )
    [release] = releases
    if release.chained_release_id is not None:
        raise UsageError(
            f"chains: expected a release of a run without chains, found {release.release_id}, whose calls "
            f"use results of calls of {release.chained_release_id}. A chain has two calls."
        )
    store = ObjectStore(settings)
    manifest = store.published(store.key_of(corpus_uri), release.manifest_sha256)
    if not set(release.files) <= {file.sha256 for file in manifest.files}:
        raise CorpusError(
            f"expected the files of release {release.release_id} in {corpus_uri}, found others. Ingest it "
            f"again: `toolformer-ops stage ingest --corpus {corpus_uri}`."
        )
    return str(release.release_id)


def start_finetuning(
    settings: Settings, run_id: str, release: str, parameters: str, dag_run: DagRun | None = None
) -> RunChoices:
    """Write the rows of a run that finetunes on a release, named by id or address; returns its choices.

    `dag_run` is the DAG run that opens it, None for a person at the command line.

    They are those of the run that made the release, but for what `parameters`, a JSON object, chooses anew.

    Raises:
        UsageError: there is no such release, something cannot be chosen anew or is out of its bounds, the
        model cannot have the adapters that are to be trained, or a text of the release was forgotten.
        ModelError: the model that the release was made with is not there.
        ConfigurationError: it is another one by now, or the run exists with other choices or another release,
        or belongs to another DAG run.
        InfrastructureError: a text of the release is being forgotten.
    """
    from toolformer_ops.language_model.models import model_identity

    chosen = values_in(parameters)
    unknown = sorted(name for name in chosen if not name.startswith(CHOSEN_ANEW))
    if unknown:
        raise UsageError(
            f"--parameters: expected names that begin with one of {', '.join(CHOSEN_ANEW)}, found "
            f"{', '.join(unknown)}. All others are those of the run that made the release."
        )
    engine = database.connect(settings)
    rows = database.fetch_all(engine, queries.finetuning.release, release=release.rstrip("/"))
    if not rows:
        raise UsageError(
            f"--release: expected the id or the address of a registered release, found {release!r}. The table "
            "dataset_releases lists them."
        )
    [registered] = rows
    release_id = registered.release_id
    choices = RunChoices.of_run(registered.parameters, **chosen)
    identity = model_identity(*split_revision(choices.model), settings=settings)
    require_identity(f"release {release_id} was made", registered.model_identity, identity, choices.model)
    _require_trainable(settings, choices.model_copy(update={"finetune": True}))
    with database.transaction(engine) as connection:
        keep_texts(connection)
        _register_run(
            connection, settings, run_id, choices,
            corpus_id=registered.corpus_id, corpus_uri=registered.corpus_uri, corpus_version=registered.corpus_version,
            ordinal_limit=registered.ordinal_limit, model_identity=identity, dag_run=dag_run,
        )  # fmt: skip
        before = database.fetch_all(connection, queries.releases.of_run, run_id=run_id)
        if any(row.release_id != release_id for row in before):
            raise ConfigurationError(
                f"run {run_id} was started on another release. Take another run id, or the release that "
                "run_releases holds for it."
            )
        database.execute(
            connection, queries.releases.set_of_run, run_id=run_id, release_id=release_id, left_out={}
        )
        require_whole_texts(connection, run_id)
        require_unforgotten(connection, release_id)
    logger.info("run %s finetunes on release %s of run %s", run_id, release_id, registered.run_id)
    return choices


def _register_run(
    connection: Connection,
    settings: Settings,
    run_id: str,
    choices: RunChoices,
    *,
    dag_run: DagRun | None,
    schedule: str | None = None,
    chained_release_id: str | None = None,
    **columns: object,
) -> None:
    """Write the row of the run; `columns` are those of its corpus and its model.

    Raises:
        ConfigurationError: the run belongs to another DAG run, or was started with other parameters.
    """
    database.execute(
        connection,
        queries.runs.insert,
        run_id=run_id,
        tools=list(choices.tools),
        document_limit=choices.document_limit,
        parameters=choices.model_dump_json(),
        code_version=__version__,
        image=settings.image,
        schedule=schedule,
        chained_release_id=chained_release_id,
        dag_id=dag_run.dag_id if dag_run else COMMAND_LINE,
        dag_run_after=dag_run.run_after if dag_run else None,
        **columns,
    )
    run = database.fetch_one(connection, queries.runs.by_id, run_id=run_id)
    if dag_run and not dag_run.owns(run):
        raise ConfigurationError(
            f"expected a run id of its own, found {run_id}, which belongs to {owner_of(run)}, of "
            f"{run.started_at:%Y-%m-%d %H:%M} UTC, also if that was deleted in Airflow. Trigger the DAG with "
            "another run id."
        )
    # Parsed, so that a run from before a choice existed is the same run with that choice's default.
    if RunChoices.of_run(run.parameters) != choices:
        raise ConfigurationError(
            f"run {run_id} was started with other parameters. Take another run id, or the parameters that "
            f"annotation_runs holds for it."
        )


def close_run(
    settings: Settings,
    run_id: str,
    *,
    is_failure: bool = True,
    problem: str = ENDED,
    dag_run: DagRun | None = None,
) -> None:
    """Record as failed a run whose DAG run is over and that was not finished: its time was up, or a person ended it.

    Does nothing if the run was finished, or belongs to another DAG run than `dag_run`; records in
    runs_not_started a run that never started, if its DAG run is a failure.
    `problem` says how it was ended.
    """
    with database.transaction(database.connect(settings)) as connection:
        runs = database.fetch_all(connection, queries.runs.by_id, run_id=run_id)
        ended = database.fetch_all(connection, queries.runs.not_started, run_id=run_id, at_most=1)
        if is_failure and not runs and not ended:
            database.execute(connection, queries.runs.insert_not_started, run_id=run_id, problem=problem)
    if runs and runs[0].state == RUNNING and (dag_run is None or dag_run.owns(runs[0])):
        logger.warning("run %s was ended before it was finished", run_id)
        # It may be finished by now, and then stays so.
        finish_run(settings, run_id, "failed", problem, dag_run=dag_run, was_opened=False)


def finish_run(
    settings: Settings,
    run_id: str,
    state: str,
    problem: str = "",
    *,
    dag_run: DagRun | None = None,
    was_opened: bool = True,
) -> str:
    """Record the end of a run, what it took next to the estimate (`on_a_file/look/estimation.py`), and its numbers.

    Writes nothing to a run that belongs to another DAG run, nor, if its own was not opened this time
    (`was_opened`), to a run that has ended: what refused to open it says nothing about how it ended.

    Args:
        settings: of the deployment.
        run_id: of the run.
        state: `success` or `failed`.
        problem: which tasks failed. Of a run that never started nothing else is recorded, in
            runs_not_started.
        dag_run: the DAG run that ends; None for a person, who may end every run.
        was_opened: whether `start_run` or `start_finetuning` took the run, and its own DAG run or a person
            ends it; False for what closes runs that no one ended.

    Returns:
        the summary of the run; nothing for a run that annotates nothing, or to which nothing was written.

    Raises:
        UsageError: `state` is not one of `RUN_STATES`.
    """
    if state not in RUN_STATES:
        raise UsageError(f"--state: expected one of {', '.join(RUN_STATES)}, found {state!r}.")
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        # Only one ends it at a time, so that its state is still what is read here.
        database.fetch_all(connection, queries.runs.lock, run_id=run_id)
        runs = database.fetch_all(connection, queries.runs.by_id, run_id=run_id)
        if not runs:
            database.execute(
                connection, queries.runs.insert_not_started, run_id=run_id, problem=problem or ENDED
            )
            logger.info("run %s never started", run_id)
            return ""
        [run] = runs
        if dag_run and not dag_run.owns(run):
            logger.warning("run %s stays as it is: it belongs to %s", run_id, owner_of(run))
            return ""
        if not was_opened and run.state != RUNNING:
            logger.warning("run %s stays as it ended: it was not opened again", run_id)
            return ""
        database.execute(connection, queries.runs.finish, run_id=run_id, state=state, problem=problem)
        database.execute(connection, queries.runs.store_cost, run_id=run_id, device_tools=tools_on_device())
    with database.transaction(engine) as connection:
        store_numbers(connection, run_id)
    with database.transaction(engine) as connection:
        store_missing_rates(connection, run_id)
    logger.info("run %s ended: %s", run_id, state)
    with database.transaction(engine) as connection:
        summary = summarise(connection, run_id)
        return summary.as_text() if summary.tools else ""

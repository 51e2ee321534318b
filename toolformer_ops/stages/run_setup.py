"""Register a run: its parameters, its recipes, its end (tables `annotation_runs`, `run_tools`, `recipes`).

Everything that later stages need to know lies in these rows, so that their arguments are ids. Registering the same run twice
is one registration; with other parameters, or by code that would write other rows, it is an error.
"""

import json
import logging
from typing import Any

from sqlalchemy import Connection

from toolformer_ops import __version__
from toolformer_ops.config import Settings
from toolformer_ops.errors import CorpusError, ParameterError, RecipeMismatchError
from toolformer_ops.records import corpus_id_of, normal_uri
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import split_revision
from toolformer_ops.runs.recipes import ToolRecipes, tool_recipes
from toolformer_ops.storage import database
from toolformer_ops.tools.registry import get_tool, tool_names

logger = logging.getLogger(__name__)

RUN_STATES = ("success", "failed")


def parse_choices(text: str) -> RunChoices:
    """Run parameters from a JSON object; fields that are null take their default.

    Raises:
        ParameterError: not a JSON object, or a field is out of its bounds.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParameterError(f"expected run parameters as JSON, found {text[:80]!r} ({error}).") from error
    if not isinstance(values, dict):
        raise ParameterError(f"expected run parameters as a JSON object, found {type(values).__name__}.")
    return RunChoices.parse({name: value for name, value in values.items() if value is not None})


def start_run(settings: Settings, run_id: str, choices: RunChoices) -> list[str]:
    """Write the run's rows; returns the names of its tools.

    Everything that a later stage would miss (corpus, model, prompts, indices) is looked for here, before any GPU work.

    Raises:
        CorpusError: the corpus was not ingested.
        ToolError, SearchIndexError, ModelError: a tool, index or model is not there.
        ParameterError: a keep threshold is below `prune_below`, or is for a tool that was not chosen.
        RecipeMismatchError: the run exists with other parameters or recipes.
    """
    from toolformer_ops.language_model import model_identity

    unknown = sorted(set(choices.keep_thresholds) - set(choices.tools))
    if unknown:
        raise ParameterError(f"keep_thresholds: expected chosen tools, found {', '.join(unknown)}.")
    thresholds = {name: choices.keep_threshold(get_tool(name).spec) for name in choices.tools}
    model_name, revision = split_revision(choices.model)
    identity = model_identity(model_name, revision)
    recipes: dict[str, tuple[ToolRecipes, str, float]] = {}
    for name in choices.tools:
        tool = get_tool(name)
        version = tool.version(settings, identity)
        built = tool_recipes(tool.spec, tool.prompt, version, identity, settings.dtype, choices)
        recipes[name] = (built, version, thresholds[name])
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        _register(connection, settings, run_id, choices, identity)
        for name, (built, version, threshold) in recipes.items():
            _register_tool(connection, run_id, name, built, version, threshold, choices.prune_below)
    logger.info("run %s: %s over %s with %s", run_id, ", ".join(recipes), choices.corpus, identity)
    return list(recipes)


def _register(connection: Connection, settings: Settings, run_id: str, choices: RunChoices, identity: str) -> None:
    uri = normal_uri(choices.corpus)
    corpus_id = corpus_id_of(uri)
    found = database.fetch_all(connection, "corpus_by_id", corpus_id=corpus_id)
    if not found:
        raise CorpusError(
            f"expected an ingested corpus {uri}, found none. Run `toolformer-ops stage ingest --corpus {uri}` first."
        )
    if not found[0].has_documents:
        raise CorpusError(
            f"expected at least one usable record in {uri}, found none; rejected_documents says why each was refused."
        )
    database.execute(
        connection,
        "insert_annotation_run",
        run_id=run_id,
        corpus_id=corpus_id,
        corpus_uri=uri,
        tools=list(choices.tools),
        document_limit=choices.document_limit,
        parameters=choices.model_dump_json(),
        model_identity=identity,
        code_version=__version__,
        image=settings.image,
    )
    [row] = database.fetch_all(connection, "run_by_id", run_id=run_id)
    if _canonical(row.parameters) != _canonical(choices.model_dump(mode="json")):
        raise RecipeMismatchError(
            f"run {run_id} was started with other parameters. Take another run id, or the parameters that "
            f"annotation_runs holds for it."
        )


def _canonical(value: Any) -> str:
    parsed = json.loads(value) if isinstance(value, str) else value
    return json.dumps(parsed, sort_keys=True)


def _register_tool(
    connection: Connection,
    run_id: str,
    tool: str,
    recipes: ToolRecipes,
    tool_version: str,
    keep_threshold: float,
    prune_below: float,
) -> None:
    for recipe in recipes.in_order():
        database.execute(
            connection,
            "insert_recipe",
            recipe_id=recipe.recipe_id,
            stage=recipe.stage,
            tool=tool,
            parent_recipe_id=recipe.parent_recipe_id,
            definition=json.dumps(dict(recipe.definition)),
        )
    values = {
        "filter_recipe_id": recipes.filter.recipe_id,
        "sampling_recipe_id": recipes.sampling.recipe_id,
        "execution_recipe_id": recipes.execution.recipe_id,
        "scoring_recipe_id": recipes.scoring.recipe_id,
    }
    database.execute(
        connection,
        "insert_run_tool",
        run_id=run_id,
        tool=tool,
        tool_version=tool_version,
        keep_threshold=keep_threshold,
        prune_below=prune_below,
        **values,
    )
    [row] = database.fetch_all(connection, "run_tool_by_id", run_id=run_id, tool=tool)
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    if changed:
        raise RecipeMismatchError(
            f"run {run_id}, {tool}: {', '.join(changed)} are not those the run was started with, because the code, "
            f"the model or the index changed meanwhile. Start a new run."
        )
    for table in ("candidate_calls", "pruned_positions"):
        database.ensure_partition(connection, table, recipes.sampling.recipe_id)
    database.ensure_partition(connection, "call_losses", recipes.scoring.recipe_id)


def finish_run(settings: Settings, run_id: str, state: str) -> None:
    """Record the end of a run, and what it took beside what it was expected to (`one_process/estimation.py`).

    Raises:
        ParameterError: `state` is not one of `RUN_STATES`.
    """
    if state not in RUN_STATES:
        raise ParameterError(f"--state: expected one of {', '.join(RUN_STATES)}, found {state!r}.")
    with database.transaction(database.connect(settings)) as connection:
        database.execute(connection, "finish_run", run_id=run_id, state=state)
        on_device = [name for name in tool_names() if get_tool(name).spec.needs_device]
        database.execute(connection, "store_run_cost", run_id=run_id, device_tools=on_device)
    logger.info("run %s ended: %s", run_id, state)

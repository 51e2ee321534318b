"""Register a run that finetunes and evaluates on a release that is there already (tables `annotation_runs`, `run_releases`).

Its parameters are those of the run that made the release, but for what a finetuning and an evaluation may choose anew. It annotates
nothing, so it has no rows in `run_tools`. Registering the same twice is one registration.
"""

import json
import logging
from typing import Any

from sqlalchemy import Row

from toolformer_ops import __version__
from toolformer_ops.config import Settings
from toolformer_ops.errors import ParameterError, RecipeMismatchError
from toolformer_ops.runs.choices import RunChoices
from toolformer_ops.runs.models import split_revision
from toolformer_ops.storage import database

logger = logging.getLogger(__name__)

CHOSEN_ANEW = ("finetune", "evaluation_")
"""How the names begin of the parameters that such a run may choose."""


def start_finetuning(settings: Settings, run_id: str, release_id: str, parameters: str) -> RunChoices:
    """Write the run's rows; returns its choices. `parameters` is a JSON object; what is null there stays as it was.

    Raises:
        ParameterError: there is no such release, or a parameter cannot be chosen anew or is out of its bounds.
        ModelError: the model that the release was made with is not there.
        RecipeMismatchError: it is another one by now, or the run exists with other parameters or another release.
    """
    chosen = _chosen(parameters)
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        found = database.fetch_all(connection, "finetune_release", release_id=release_id)
    if not found:
        raise ParameterError(
            f"--release: expected the id of a registered release, found {release_id!r}. The table dataset_releases lists them."
        )
    [release] = found
    merged = RunChoices.parse({**release.parameters, **chosen})
    _require_model(release, merged)
    with database.transaction(engine) as connection:
        database.execute(
            connection,
            "insert_annotation_run",
            run_id=run_id,
            corpus_id=release.corpus_id,
            corpus_uri=release.corpus_uri,
            tools=release.tools,
            document_limit=release.document_limit,
            parameters=merged.model_dump_json(),
            model_identity=release.model_identity,
            code_version=__version__,
            image=settings.image,
        )
        [run] = database.fetch_all(connection, "run_by_id", run_id=run_id)
        before = database.fetch_all(connection, "release_of_run", run_id=run_id)
        if run.parameters != merged.model_dump(mode="json") or any(row.release_id != release_id for row in before):
            raise RecipeMismatchError(
                f"run {run_id} was started with other parameters or on another release. Take another run id, or what "
                "annotation_runs and run_releases hold for it."
            )
        database.execute(connection, "release_of_run_set", run_id=run_id, release_id=release_id, left_out={})
    logger.info("run %s finetunes on release %s of run %s", run_id, release_id, release.run_id)
    return merged


def _chosen(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParameterError(f"--parameters: expected a JSON object, found {text[:80]!r} ({error}).") from error
    if not isinstance(values, dict):
        raise ParameterError(f"--parameters: expected a JSON object, found {type(values).__name__}.")
    unknown = sorted(name for name in values if not name.startswith(CHOSEN_ANEW))
    if unknown:
        raise ParameterError(
            f"--parameters: expected names that begin with {' or '.join(CHOSEN_ANEW)}, found {', '.join(unknown)}. All others are "
            "those of the run that made the release."
        )
    return {name: value for name, value in values.items() if value is not None}


def _require_model(release: Row[Any], choices: RunChoices) -> None:
    from toolformer_ops.language_model import model_identity

    name, revision = split_revision(choices.model)
    identity = model_identity(name, revision)
    if identity != release.model_identity:
        raise RecipeMismatchError(
            f"release {release.release_id} was made with the model {release.model_identity}, found {identity} at {name}. Put the "
            "first one back."
        )

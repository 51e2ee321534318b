"""Quality gates: test a tool's rows after scoring, and the release (table `quality_results`).

A check with severity `fail` that does not hold stops the run with a message that names rows; `warn` is reported. How checks are
run is `quality.py`'s business; here is what is claimed. Mends nothing.
"""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine

from toolformer_ops.call_syntax import take_out, weave
from toolformer_ops.config import Settings
from toolformer_ops.errors import ParameterError, QualityError
from toolformer_ops.quality import (
    Check,
    CheckResult,
    QueryRows,
    Subject,
    among,
    between,
    equal,
    finite,
    greater,
    present,
    run_checks,
    unique,
)
from toolformer_ops.release.choosing import ReleaseTool, choose_calls, chosen_texts
from toolformer_ops.runs.micro_batches import RunTool, load_run_tool
from toolformer_ops.storage import database

if TYPE_CHECKING:
    import pandas as pd

    from toolformer_ops.runs.choices import RunChoices

logger = logging.getLogger(__name__)

RELEASE = "release"

CALL_CHECKS = (
    Check("call_ids_are_unique", "every call id once", (present("call_id"), unique("call_id"))),
    Check(
        "positions_lie_inside_the_text",
        "positions after the start and before the end of the text",
        (between("position_char", 1), greater("text_length", "position_char")),
    ),
    Check(
        "probabilities_are_probabilities",
        "position probabilities in [0, 1]",
        (present("position_probability"), between("position_probability", 0.0, 1.0)),
    ),
)
LOSS_CHECKS = (
    Check(
        "losses_are_finite",
        "finite losses of at least 0 nats for every scored call",
        (*finite("loss_without_call"), *finite("loss_without_result"), *finite("loss_with_result")),
    ),
    Check(
        "reduction_equals_its_definition",
        "loss_reduction = min(loss_without_call, loss_without_result, loss_without_call_full_context) - loss_with_result",
        (equal("loss_reduction", "reduction_by_definition"),),
    ),
)
LEDGER_CHECKS = (
    Check(
        "every_document_is_in_the_ledger",
        "a ledger row for every stage that a document passes (else run the stage again)",
        (between("ledger_rows", 1, 1),),
    ),
    Check(
        "ledger_equals_rows",
        "as many rows as the ledger says and the stage before asks for",
        (equal("rows_written", "rows_found"), equal("rows_found", "rows_expected")),
    ),
    Check(
        "every_sample_is_accounted_for",
        "samples = candidates + duplicates + rejected samples",
        (equal("items_in", "items_out"),),
    ),
    Check(
        "every_pruned_position_is_stored",
        "as many rows in pruned_positions as the ledger counts positions pruned",
        (equal("pruned_in_ledger", "pruned_found"),),
    ),
)
PRUNING_CHECKS = (
    Check(
        "what_was_pruned_cannot_be_kept",
        "a bound below prune_below for every pruned position and call",
        (present("bound"), greater("prune_below", "bound")),
    ),
)
RECIPE_CHECKS = (
    Check(
        "recipes_are_described",
        "each recipe of the tool described in `recipes` for its stage and tool",
        (between("described", 1, 1),),
    ),
)
TEXT_CHECKS = (
    Check(
        "calls_removed_give_the_text_back",
        "the text back, byte for byte, after its calls are taken out",
        (among("gives_text_back", [True]),),
    ),
)


def check_tool(settings: Settings, run_id: str, tool: str) -> list[CheckResult]:
    """Test what a tool's stages left in Postgres; returns all results where none with severity `fail` failed.

    Raises:
        QualityError: a check failed; the message names the first rows.
        ParameterError, ToolError: there is no such run, or it was started without this tool.
    """
    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, tool)
        texts = _kept_texts(connection, run)
    parameters = {
        "run_id": run_id,
        "tool": tool,
        "tool_version": run.tool_version,
        "filter_recipe_id": run.filter_recipe_id,
        "sampling_recipe_id": run.sampling_recipe_id,
        "execution_recipe_id": run.execution_recipe_id,
        "scoring_recipe_id": run.scoring_recipe_id,
        "keep_threshold": repr(run.keep_threshold),
    }
    results = run_checks(
        engine,
        [
            Subject(QueryRows("check_recipes", parameters), "stage", RECIPE_CHECKS),
            Subject(QueryRows("check_ledger", parameters), "stage_of_document", LEDGER_CHECKS),
            Subject(QueryRows("check_calls", parameters), "call_id", CALL_CHECKS),
            Subject(QueryRows("check_losses", parameters), "call_id", LOSS_CHECKS),
            Subject(QueryRows("check_pruned", parameters), "pruned", PRUNING_CHECKS),
            Subject(texts, "document_id", TEXT_CHECKS),
            Subject(QueryRows("check_yield", parameters), "tool", yield_checks(run.choices)),
        ],
    )
    return _conclude(engine, run_id, tool, results)


def yield_checks(choices: "RunChoices") -> tuple[Check, ...]:
    """The bounds that the run sets on what a tool keeps, and a warning where it keeps nothing."""
    fewest, largest_share = choices.min_kept_texts, choices.max_kept_share
    return (
        Check(
            "enough_texts_are_kept",
            f"at least {fewest} texts with a kept call (min_kept_texts)",
            (between("kept_texts", fewest),),
        ),
        Check(
            "kept_share_is_plausible",
            f"at most {largest_share:.0%} of the scored calls kept (max_kept_share): more, and results leak into the text",
            (between("kept_share", 0.0, largest_share),),
        ),
        Check("some_call_is_kept", "at least one kept call", (between("kept_calls", 1),), "warn"),
    )


def _kept_texts(connection: Connection, run: RunTool) -> "pd.DataFrame":
    """One row a text with calls that this tool would release: whether weaving them in and taking them out gives it back."""
    import pandas as pd

    tool = ReleaseTool(
        tool=run.tool,
        sampling_recipe_id=run.sampling_recipe_id,
        execution_recipe_id=run.execution_recipe_id,
        scoring_recipe_id=run.scoring_recipe_id,
        keep_threshold=run.keep_threshold,
    )
    choose_calls(connection, run.run_id, [tool], max_examples=None)
    rows: list[tuple[str, bool]] = []
    for text in chosen_texts(connection, [tool]):
        calls = [call.woven for call in text.calls]
        inside = all(0 <= call.position_char <= len(text.text) for call in calls)
        rows.append((str(text.document_id), inside and take_out(weave(text.text, calls), [run.tool]) == text.text))
    return pd.DataFrame(rows, columns=["document_id", "gives_text_back"])


def check_release(settings: Settings, run_id: str) -> list[CheckResult]:
    """Test the run's release as it lies on S3; returns all results where none with severity `fail` failed.

    Raises:
        QualityError: a check failed; the message names the first rows.
        ParameterError: the run has no release.
        ObjectStoreError: the release is not on S3 with the content that its manifest names.
    """
    from toolformer_ops.storage.object_store import ObjectStore

    engine = database.connect(settings)
    with database.transaction(engine) as connection:
        releases = database.fetch_all(connection, "release_of_run", run_id=run_id)
        tools = [row.tool for row in database.fetch_all(connection, "check_release_tools", run_id=run_id)]
    if not releases:
        raise ParameterError(f"run {run_id}: expected a release, found none. Run `toolformer-ops stage release` first.")
    [release] = releases
    store = ObjectStore(settings)
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="check-release-", dir=settings.state_dir) as folder:
        manifest = store.fetch(store.key_of(release.uri), Path(folder))
        texts, calls = _release_frames(Path(folder), tools)
    registered = {
        "texts": (len(texts), release.documents),
        "calls": (len(calls), release.calls),
        "manifest": (manifest.sha256, release.manifest_sha256),
    }
    results = run_checks(
        engine,
        [
            Subject(_registered_frame(registered), "what", REGISTERED_CHECKS),
            Subject(texts, "document_id", RELEASED_TEXT_CHECKS),
            Subject(calls, "call_id", (*CALL_CHECKS, *LOSS_CHECKS, _tool_check(tools))),
            Subject(_tool_frame(calls, tools), "tool", TOOL_PRESENCE_CHECKS),
        ],
    )
    return _conclude(engine, run_id, RELEASE, results)


RELEASED_TEXT_CHECKS = (
    Check("document_ids_are_unique", "every text once", (present("document_id"), unique("document_id"))),
    *TEXT_CHECKS,
    Check("every_text_has_a_call", "at least one call in every text", (between("call_count", 1),)),
)
REGISTERED_CHECKS = (
    Check(
        "release_is_what_is_registered",
        "on S3 what `dataset_releases` says: number of texts and calls, and the manifest's hash",
        (equal("on_s3", "registered"),),
    ),
)
TOOL_PRESENCE_CHECKS = (
    Check(
        "every_tool_is_present",
        "a call of every tool that the run asked for",
        (between("released_calls", 1),),
        "warn",
    ),
)


def _tool_check(tools: Sequence[str]) -> Check:
    return Check("tools_are_those_of_the_run", f"calls of {', '.join(tools)} alone", (among("tool", tools),))


def _release_frames(folder: Path, tools: Sequence[str]) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """The release's texts and its calls, one row each."""
    import pandas as pd

    from toolformer_ops.release.format import read_release

    texts: list[tuple[str, bool, int]] = []
    calls: list[dict[str, object]] = []
    for text in read_release(folder):
        texts.append((str(text.document_id), text.gives_text_back(tools), len(text.calls)))
        for call in text.calls:
            full_context = call.loss_without_call_full_context
            rivals = [
                call.loss_without_call,
                call.loss_without_result,
                *([] if full_context is None else [full_context]),
            ]
            by_definition = min(rivals) - call.loss_with_result
            length = len(text.plain_text)
            calls.append({**vars(call), "text_length": length, "reduction_by_definition": by_definition})
    return pd.DataFrame(texts, columns=["document_id", "gives_text_back", "call_count"]), pd.DataFrame(calls)


def _registered_frame(registered: dict[str, tuple[object, object]]) -> "pd.DataFrame":
    import pandas as pd

    rows = [(what, str(found), str(said)) for what, (found, said) in registered.items()]
    return pd.DataFrame(rows, columns=["what", "on_s3", "registered"])


def _tool_frame(calls: "pd.DataFrame", tools: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    released = calls["tool"].value_counts() if len(calls) else {}
    return pd.DataFrame([(tool, int(released.get(tool, 0))) for tool in tools], columns=["tool", "released_calls"])


def _conclude(engine: Engine, run_id: str, subject: str, results: list[CheckResult]) -> list[CheckResult]:
    """Store all results, report them, and raise where a check with severity `fail` failed."""
    with database.transaction(engine) as connection:
        for result in results:
            database.execute(
                connection,
                "check_record",
                run_id=run_id,
                subject=subject,
                check_name=result.check.name,
                severity=result.check.severity,
                success=result.success,
                observed=dict(result.observed),
                message=result.message,
            )
    failed = [result for result in results if not result.success]
    for result in failed:
        level = logging.ERROR if result.check.severity == "fail" else logging.WARNING
        logger.log(level, "%s: %s: %s", subject, result.check.name, result.message)
    logger.info("checked %s: %d of %d checks hold", subject, len(results) - len(failed), len(results))
    stopping = [result for result in failed if result.check.severity == "fail"]
    if stopping:
        found = "; ".join(f"{result.check.name}: {result.message}" for result in stopping)
        raise QualityError(
            f"{len(stopping)} of {len(results)} checks of {subject} failed in run {run_id}. {found}. "
            "The table quality_results holds all of them."
        )
    return results

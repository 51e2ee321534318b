"""Quality gates: test a tool's rows after scoring, and the release (table `quality_results`).

A check is a claim of `sql/audits` with the scope `tool` or `files` (`claims.py`); its statement returns the
offending rows. One with severity `fail` stops the run with a message that names rows, `warn` is reported.
Great Expectations runs it.

Only what is new is read: the documents that no earlier passed check of the same recipes covers
(`finished_work`). A check of a tool that passes writes `finished_work` and `checked_yields` in one
transaction with its results, unless rows of its recipes were deleted since it began (`retry-failed`).

GX binds no parameters, and runs a statement many times. So each check runs once, on GX's connection, into a
temporary table of at most five offending rows, which is what GX reads. The rows to check, `{batch}`, are
those of a statement of `sql/queries/checks.sql` or a temporary table. What is large is read once, into such
tables: a tool's calls, joined with their losses, and by COPY what a release's files hold. Repairs nothing.
"""

import itertools
import logging
import math
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine

from toolformer_ops.audit.claims import Claim, claims_of
from toolformer_ops.audit.released_calls import compare_calls
from toolformer_ops.call_syntax import NOT_IN_A_CALL, Call, WovenCall, call_opening, take_out, weave
from toolformer_ops.config import Settings
from toolformer_ops.errors import (
    DatabaseError,
    DatabaseUnreachableError,
    NoResultError,
    UsageError,
)
from toolformer_ops.evaluation.overlap import EvaluationNgrams, Overlap
from toolformer_ops.language_model.models.late_imports import imported_when_used
from toolformer_ops.release.choosing import PAGE_TEXTS
from toolformer_ops.release.format import read_release
from toolformer_ops.runs.numbers import count_kept
from toolformer_ops.runs.placebo_rates import FEWEST_PLACEBOS, store_rates
from toolformer_ops.runs.run_tools import (
    RunTool,
    has_work_left,
    load_run_tool,
    members_beyond_finished,
    require_run,
)
from toolformer_ops.stages.release import evaluation_ngrams, find_overlaps
from toolformer_ops.storage.machine.temporary_folders import temporary_folder
from toolformer_ops.storage.objects.publication import ObjectStore
from toolformer_ops.storage.postgres import database, partitions, queries

logger = logging.getLogger(__name__)

RELEASE = "release"
"""The subject of a release's checks in `quality_results`; the others are named by their tool."""
FIRST_ROWS = """create temporary table found_{name} as
select count(*) over () as unexpected, offending.* from (\n{statement}\n) as offending limit 5"""
"""The rows that a message names, each with the number of all offending rows."""


@dataclass(frozen=True)
class CheckResult:
    """What a check found."""

    claim: Claim
    success: bool
    observed: Mapping[str, Any]
    """`rows`, `unexpected` and `examples`; JSON values only."""
    message: str


@dataclass(frozen=True)
class CheckedTools:
    """What became of a run's tools at their checks; a tool that is not complete is in neither."""

    passed: list[str]
    """The tools whose rows passed, now or in an earlier run."""
    refused: dict[str, str]
    """By tool, which checks failed, and on which rows."""


def check_tools(settings: Settings, run_id: str) -> CheckedTools:
    """Test the rows of each complete tool of a run that no earlier run has passed: one that fails holds up no other.

    Raises:
        UsageError: there is no such run.
    """
    with database.transaction(database.connect(settings)) as connection:
        earlier = database.fetch_all(connection, queries.planning.tools_checked, run_id=run_id)
        passed_before = {row.tool for row in earlier}
        complete = []
        for tool in require_run(connection, run_id).tools:
            if not has_work_left(connection, load_run_tool(connection, run_id, tool)):
                complete.append(tool)
    passed: list[str] = []
    refused: dict[str, str] = {}
    for tool in complete:
        if tool in passed_before:
            passed.append(tool)
            continue
        try:
            check_tool(settings, run_id, tool)
        except NoResultError as error:
            logger.warning("%s: %s", tool, error)
            refused[tool] = str(error)
        else:
            passed.append(tool)
    logger.info("%d tools are done: %s", len(passed), ", ".join(passed) or "none")
    return CheckedTools(passed, refused)


def check_tool(settings: Settings, run_id: str, tool: str) -> list[CheckResult]:
    """Test what a tool's stages wrote to Postgres; returns all results if none with severity `fail` failed.

    Raises:
        NoResultError: a check failed; the message names the first rows.
        UsageError: there is no such run, or it was started without this tool.
    """
    engine = database.connect(settings)
    partitions.analyze_grown(engine)  # the last stage ended just now
    with database.transaction(engine) as connection:
        run = load_run_tool(connection, run_id, tool)
        recipes = database.fetch_all(connection, queries.runs.locked_recipes, run_id=run_id, tool=tool)
        # A check that is repeated, since its answer was lost or a person cleared it, finds what the first one
        # did.
        members = members_beyond_finished(connection, run, *run.recipe_ids, own_work_too=True)
        store_rates(connection, run)
    parameters: dict[str, object] = {}

    def write_rows(own: Engine) -> Mapping[str, object]:
        parameters.update(write_rows_of_tool(own, run, members))
        return parameters

    results = run_checks(engine, write_rows, "tool")

    def record_passed(connection: Connection) -> None:
        recipes_now = database.fetch_all(connection, queries.runs.locked_recipes, run_id=run_id, tool=tool)
        if recipes_now != recipes:
            logger.warning(
                "%s: rows were deleted while they were checked (`retry-failed`); the next run checks what is "
                "left of them again",
                tool,
            )
            return
        if run.last_document_id is None:
            bounds = {name: members[name] for name in ("corpus_id", "at_version", "below_ordinal")}
            database.execute(
                connection, queries.checks.finished, run_id=run_id, recipe_ids=run.recipe_ids, **bounds
            )
        database.execute(connection, queries.checks.yield_record, **parameters)

    return conclude(engine, run_id, tool, results, record_passed)


def write_rows_of_tool(engine: Engine, run: RunTool, members: Mapping[str, object]) -> dict[str, object]:
    """Write the temporary tables of the scope `tool` on the single connection of `engine`.

    Returns the parameters of its checks. `members` are the documents to check, as the SQL function
    `members_to_do` takes them.
    """
    parameters: dict[str, object] = {
        **vars(run),
        "min_kept_texts": run.choices.min_kept_texts,
        "max_false_discovery_rate": run.choices.max_false_discovery_rate,
        "fewest_placebos": FEWEST_PLACEBOS,
    }
    with database.transaction(engine) as connection:
        database.execute(
            connection,
            queries.checks.tables_of_tool,
            members=members,
            call_opening=call_opening(run.tool),
            not_in_a_call=NOT_IN_A_CALL,
            **parameters,
        )
        parameters |= vars(count_kept(connection, run))
        # The texts of which Postgres cannot tell that they come back.
        rows = ((str(document_id), gives_back) for document_id, gives_back in texts_in_doubt(connection, run))
        database.copy_insert(connection, "checked_texts", ("document_id", "gives_text_back"), rows)
    return parameters


def texts_in_doubt(connection: Connection, run: RunTool) -> Iterator[tuple[uuid.UUID, bool]]:
    """The texts that `checks.tables_of_tool` left out, and whether each comes back after its calls are put in and out again."""
    after = uuid.UUID(int=0)
    recipes = {"sampling_recipe_id": run.sampling_recipe_id, "scoring_recipe_id": run.scoring_recipe_id}
    while page := database.fetch_all(
        connection, queries.checks.texts_in_doubt, after=after, page_size=PAGE_TEXTS, **recipes
    ):
        for row in page:
            calls = [
                WovenCall(position, Call(run.tool, call_input), result)
                for position, call_input, result in zip(row.positions, row.inputs, row.results, strict=True)
            ]
            inside = all(0 <= call.position_char <= len(row.text) for call in calls)
            plain = row.text if run.chained_release_id is None else take_out(row.text, [run.tool])
            yield row.document_id, inside and take_out(weave(row.text, calls), [run.tool]) == plain
        after = page[-1].document_id


def check_release(settings: Settings, run_id: str) -> list[CheckResult]:
    """Test the run's release as it is on S3; returns all results if none with severity `fail` failed.

    Raises:
        NoResultError: a check failed; the message names the first rows.
        UsageError: the run has no release.
        EvaluationDataError: it is compared with evaluation data, and they are not there, or of another
        format.
        ObjectStoreError: the release is not on S3 with the content that its manifest names.
    """
    engine = database.connect(settings)
    releases = database.fetch_all(engine, queries.releases.of_run, run_id=run_id)
    if not releases:
        raise UsageError(
            f"run {run_id}: expected a release, found none. Run `toolformer-ops stage release` first."
        )
    [release] = releases
    evaluation_data = evaluation_ngrams(settings, run_id)
    store = ObjectStore(settings)
    with temporary_folder(settings.state_dir, "check-release") as folder:
        manifest = store.fetch(store.key_of(release.uri), folder)
        results = run_checks(
            engine,
            lambda own: write_rows_of_release(own, run_id, folder, manifest.sha256, evaluation_data),
            "files",
        )
    return conclude(engine, run_id, RELEASE, results)


CALL_COLUMNS = (
    "call_id",
    "tool",
    "position_char",
    "position_probability",
    "loss_without_call",
    "loss_without_result",
    "loss_without_call_full_context",
    "loss_with_result",
    "loss_reduction",
)
"""Columns of `checked_calls` that are fields of `release.format.ReleasedCall`."""


def released_calls(
    connection: Connection, definition: Mapping[str, Any] | None, folder: Path
) -> Iterator[tuple[Any, ...]]:
    """The rows of `checked_calls`: length of the text, what differs from the call's rows in Postgres, and `CALL_COLUMNS`."""
    texts = read_release(folder)
    while page := list(itertools.islice(texts, PAGE_TEXTS)):
        compared = compare_calls(connection, definition, page)
        for text in page:
            for call in text.calls:
                difference = next(compared).difference
                yield len(text.plain_text), difference, *(getattr(call, column) for column in CALL_COLUMNS)


def write_rows_of_release(
    engine: Engine, run_id: str, folder: Path, manifest_sha256: str, evaluation_data: EvaluationNgrams | None
) -> dict[str, object]:
    """Write the temporary tables of the scope `files` from a release's files.

    In all else it does as `write_rows_of_tool`.
    """
    with database.transaction(engine) as connection:
        database.execute(connection, queries.checks.tables_of_release)
        run = database.fetch_one(connection, queries.runs.by_id, run_id=run_id)
        chained = run.chained_release_id is not None
        texts = (
            (str(text.document_id), len(text.calls), text.gives_text_back(run.tools, chained=chained))
            for text in read_release(folder)
        )
        database.copy_insert(
            connection, "checked_texts", ("document_id", "call_count", "gives_text_back"), texts
        )
        release = database.fetch_one(connection, queries.releases.of_run, run_id=run_id)
        calls = released_calls(connection, release.definition, folder)
        columns = ("text_length", "difference", *CALL_COLUMNS)
        database.copy_insert(connection, "checked_calls", columns, calls)
        shared: list[Overlap] = []
        if evaluation_data is not None:
            released = ((text.document_id, text.plain_text) for text in read_release(folder))
            left_out = database.fetch_all(connection, queries.checks.left_out_texts, run_id=run_id)
            shared = find_overlaps(itertools.chain(released, map(tuple, left_out)), evaluation_data)
    return {
        "run_id": run_id,
        "tools": run.tools,
        "manifest_sha256": manifest_sha256,
        "document_ids": [overlap.document_id for overlap in shared],
        "suites": [overlap.suite for overlap in shared],
        "data_sets": [overlap.data_set for overlap in shared],
        "questions": [overlap.question for overlap in shared],
    }


@database.translating("checks")
def run_checks(
    engine: Engine,
    write_rows: Callable[[Engine], Mapping[str, object]],
    scope: str,
) -> list[CheckResult]:
    """Run the checks of a scope by Great Expectations; one result a check, in the order of their names.

    `write_rows` writes what their rows are taken from into temporary tables of the engine that it is given,
    and returns the parameters of the statements.

    Raises:
        DatabaseError: a statement could not be run, or the connection broke; nothing is known then, and no
        check counts as passed.
    """
    context, source = _great_expectations(engine)
    own_engine: Engine = source.get_execution_engine().engine
    with database.transaction(own_engine) as connection:
        backend = _backend_of(connection)
    try:
        # 1. What the rows to check are taken from.
        parameters = write_rows(own_engine)
        # 2. The rows that break each claim, and how many there are to check.
        claims = claims_of(scope)
        names = {claim.scopes[scope] for claim in claims}
        batches, sizes = {}, []
        for name in sorted(names):
            is_table = name.startswith("checked_")
            batches[name] = batch = name if is_table else f"({queries.checks[name].sql}) as rows_to_check"
            sizes.append(f"select '{name}' as batch, count(*) as rows from {batch}")  # noqa: S608
        count = queries.Statement("rows to check", " union all ".join(sizes))
        with database.transaction(own_engine) as connection:
            sized = database.fetch_all(connection, count, **parameters)
            counts = {row.batch: row.rows for row in sized}
            for claim in claims:
                offending = claim.statement.replace("{batch}", batches[claim.scopes[scope]])
                first_rows = FIRST_ROWS.format(name=claim.name, statement=offending)
                database.execute(
                    connection, queries.Statement(f"check {claim.name}", first_rows), **parameters
                )
        # 3. One validation of all that was found.
        counterexamples = _validated(context, source, claims)
        results = [
            result_of(claim, counts[claim.scopes[scope]], counterexamples[claim.name]) for claim in claims
        ]
    except DatabaseError as error:
        # Another session has none of the temporary tables: what is wrong is not what Postgres then says.
        with database.transaction(own_engine) as connection:
            if not isinstance(error, DatabaseUnreachableError) and _backend_of(connection) != backend:
                message = (
                    "checks: the connection to Postgres broke, and with it the tables to check. Try again"
                )
                raise DatabaseUnreachableError(f"{message}: what is committed stays.") from error
        raise
    finally:
        own_engine.dispose()
    return results


def _great_expectations(engine: Engine) -> tuple[Any, Any]:
    """A context of Great Expectations that writes no files, and in it the database of `engine` as a source with one connection."""
    # It takes seconds to import, and reads the environment while it is imported.
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with imported_when_used("altair", "scipy.stats"):  # for one of its expectations, which no check is
        import great_expectations as gx
        from great_expectations.data_context.types.base import (
            DataContextConfig,
            InMemoryStoreBackendDefaults,
            ProgressBarsConfig,
        )

    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    # Without this configuration it makes a folder for its HTML reports.
    config = DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults())
    context: Any = gx.get_context(mode="ephemeral", project_config=config)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    with warnings.catch_warnings():
        # It recommends its Postgres source, which refuses an address with a socket.
        warnings.filterwarnings("ignore", message="You are using a generic SQLDatasource")
        source = context.data_sources.add_sql(
            "checks",
            connection_string=engine.url.render_as_string(hide_password=False),
            create_temp_table=False,
            kwargs={"pool_size": 1, "max_overflow": 0},  # one connection, which owns the temporary tables
        )
    return context, source


def _validated(context: Any, source: Any, claims: Sequence[Claim]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The rows that Great Expectations finds in `found_CHECK`, by check.

    Raises `DatabaseError` if it could not run one.
    """
    import great_expectations as gx

    expect: Any = gx.expectations
    expectations = [
        expect.UnexpectedRowsExpectation(
            # GX wants its batch, of one row, in the query.
            unexpected_rows_query=f"select found.* from found_{claim.name} found cross join {{batch}}",  # noqa: S608
            severity="critical" if claim.severity == "fail" else "warning",
            meta={"check": claim.name},
        )
        for claim in claims
    ]
    batches = source.add_query_asset("found", query="select 1 as one").add_batch_definition_whole_table(
        "found"
    )
    suite = context.suites.add(gx.ExpectationSuite(name="found", expectations=expectations))
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="found", data=batches, suite=suite)
    )
    examples_of_check: dict[str, Sequence[Mapping[str, Any]]] = {}
    # GX reports an error inside an expectation flat or by metric, and its results in an order that it
    # chooses.
    for result in definition.run(result_format="COMPLETE").results:
        name = result.expectation_config.meta["check"]
        information = result.exception_info or {}
        entries = [information] if "raised_exception" in information else information.values()
        if raised := [entry for entry in entries if entry.get("raised_exception")]:
            message = f"check {name}: {' '.join(str(raised[0]['exception_message']).split())}"
            # All that GX keeps of an error is text. psycopg2 has subclasses for what Postgres refuses.
            if "psycopg2.OperationalError" in str(raised[0]["exception_traceback"]):
                raise DatabaseUnreachableError(
                    f"{message}. Postgres cannot serve now: try again; what is committed stays."
                )
            raise DatabaseError(message)
        examples_of_check[name] = result.result["details"]["unexpected_rows"]
    return examples_of_check


def _backend_of(connection: Connection) -> int:
    """The process of Postgres that serves this connection."""
    driver: Any = connection.connection.dbapi_connection
    return int(driver.get_backend_pid())


def result_of(claim: Claim, rows: int, offending: Sequence[Mapping[str, Any]]) -> CheckResult:
    """The result of a check on so many rows, by the first rows that break it.

    Each says in `unexpected` how many there are.
    """

    def json_value(value: object) -> object:
        is_json = (
            isinstance(value, bool | int | str)
            or value is None
            or (isinstance(value, float) and math.isfinite(value))
        )
        return value if is_json else str(value)

    unexpected = int(offending[0]["unexpected"]) if offending else 0
    examples = []
    for row in offending:
        example = {name: json_value(value) for name, value in row.items()}
        example.pop("unexpected", None)
        examples.append(example)
    observed = {"rows": rows, "unexpected": unexpected, "examples": examples}
    if not offending:
        return CheckResult(claim, True, observed, f"{claim.sentence}: so in all {rows} rows")
    named = []
    for example in examples:
        (key, value), *others = example.items()
        details = ", ".join(f"{name} {other}" for name, other in others)
        named.append(f"{key} {value} ({details})" if details else f"{key} {value}")
    message = f"expected {claim.sentence}, found otherwise in {unexpected} of {rows} rows: {'; '.join(named)}"
    return CheckResult(claim, False, observed, message)


def conclude(
    engine: Engine,
    run_id: str,
    subject: str,
    results: list[CheckResult],
    record_passed: Callable[[Connection], None] = lambda _: None,
) -> list[CheckResult]:
    """Store all results, report them, and return them.

    `record_passed` writes in the same transaction, if no check stops the run.

    Raises:
        NoResultError: a check with severity `fail` failed.
    """
    with database.transaction(engine) as connection:
        for result in results:
            database.execute(
                connection,
                queries.checks.record,
                run_id=run_id,
                subject=subject,
                check_name=result.claim.name,
                severity=result.claim.severity,
                success=result.success,
                observed=dict(result.observed),
                message=result.message,
            )
        stopping = [result for result in results if not result.success and result.claim.severity == "fail"]
        if not stopping:
            record_passed(connection)
    failed = [result for result in results if not result.success]
    for result in failed:
        level = logging.ERROR if result.claim.severity == "fail" else logging.WARNING
        logger.log(level, "%s: %s: %s. %s", subject, result.claim.name, result.message, result.claim.remedy)
    logger.info("checked %s: %d of %d checks hold", subject, len(results) - len(failed), len(results))
    if stopping:
        failures = "; ".join(
            f"{result.claim.name}: {result.message}. {result.claim.remedy}" for result in stopping
        )
        raise NoResultError(
            f"{len(stopping)} of {len(results)} checks of {subject} failed in run {run_id}. {failures} "
            "The table quality_results holds all of them."
        )
    return results

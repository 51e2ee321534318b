"""Checks of Postgres: ids, rows against the ledger, sums of corpora, runs and their stored numbers.

Most are one statement a page (sql/queries/audited_rows.sql). Postgres computes the hashes and ids by the
functions that the stages' hashes are made with (sql/functions/01_hashes.sql).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, column, delete, insert, literal_column, select
from sqlalchemy import table as sql_table

from toolformer_ops.audit.auditing import NO_DOCUMENT, Auditing, Check, Page, statement_page
from toolformer_ops.runs.numbers import count_kept, store_numbers
from toolformer_ops.runs.placebo_rates import store_rates
from toolformer_ops.runs.recipes import Recipe
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE, load_run_tool
from toolformer_ops.storage.corpora.reading import REFUSED_ROWS
from toolformer_ops.storage.postgres import database, queries
from toolformer_ops.storage.postgres.queries import Statement


def documents(auditing: Auditing, _: str, position: str) -> Page:
    """Ids of documents and variants are the hashes of their content, and a corpus holds each."""
    subjects = auditing.subjects
    return statement_page(
        auditing,
        queries.audited_rows.documents,
        after=position or NO_DOCUMENT,
        corpus_ids=None if subjects.scope == "all" else list(subjects.corpus_ids),
        orphans_after_seconds=auditing.orphans_after.total_seconds(),
        page_size=auditing.page_documents,
    )


def corpus_sums(auditing: Auditing, corpus_id: str, _: str) -> Page:
    """Records in = documents + duplicates + rejected, for each file and version of a corpus, counted from the rows."""
    return statement_page(
        auditing, queries.audited_rows.corpus, corpus_id=corpus_id, refused_rows=REFUSED_ROWS
    )


def recipe_ids(auditing: Auditing, _: str, __: str) -> Page:
    """Ids of recipes are the hashes of their definitions."""
    page = Page()
    rows = database.fetch_all(
        auditing.engine,
        queries.audited_rows.recipes,
        recipe_ids=None if auditing.subjects.scope == "all" else auditing.subjects.recipe_ids(),
    )
    for row in rows:
        page.items += 1
        recipe_id = Recipe(row.stage, row.tool, row.definition, row.parent_recipe_id).recipe_id
        if recipe_id != row.recipe_id:
            page.add(
                "changed",
                "recipes",
                row.recipe_id,
                f"expected the definition that the id is the hash of, found one with the hash {recipe_id}",
                "Restore the row from a backup: it is what the rows of this recipe are explained by.",
            )
    return page


def partitions(auditing: Auditing, _: str, __: str) -> Page:
    """The rows of each recipe are partitions of their tables, where the stages look for them."""
    page = Page(items=len(auditing.subjects.recipe_ids()))
    for row in auditing.detached():
        page.add(
            "lost",
            row.relation,
            f"partition {row.relation}_{row.recipe_id}",
            f"expected a partition of {row.relation}, found a table that was detached",
            "Attach it (--repair), and audit again.",
            repair={"action": "attach", "table": row.relation, "recipe_id": row.recipe_id},
        )
    return page


def stage_rows(stage: str) -> Check:
    """The check of one stage: its rows against their hashes in the ledger, and against their definitions."""
    rows = queries.audited_rows[stage]
    statement = Statement(rows.name, queries.audited_rows.stage_rows.sql.replace("{rows}", rows.sql))
    before = {"sample": "filter", "execute": "sample", "score": "execute", "placebo": "score"}.get(stage)

    def page(auditing: Auditing, recipe_id: str, position: str) -> Page:
        tool = next(tool for tool in auditing.subjects.tools if _recipe(tool, stage) == recipe_id)
        return statement_page(
            auditing,
            statement,
            stage=stage,
            recipe_id=recipe_id,
            previous_recipe_id=_recipe(tool, before) if before else None,
            tool=tool.tool,
            tool_version=tool.tool_version,
            after=position or NO_DOCUMENT,
            page_size=auditing.page_documents,
        )

    def recipes(auditing: Auditing) -> Sequence[str]:
        if not auditing.subjects.has_rows:
            return []
        # The ledger of rows that are in the history alone stays; `audit/history.py` looks at their files.
        # Which inputs an execution has asked is in the calls. What was detached is found by itself.
        detached = {row.recipe_id for row in auditing.detached()}
        in_history = auditing.in_history_alone() | detached
        recipe_ids: dict[str, None] = {}  # in order, each once
        for tool in auditing.subjects.tools:
            recipe_id = _recipe(tool, stage)
            has_rows = tool.sampling_recipe_id not in in_history or stage == "filter"
            has_rows = has_rows and not (before and _recipe(tool, before) in detached)
            if has_rows and recipe_id and recipe_id not in in_history:
                recipe_ids[recipe_id] = None
        return list(recipe_ids)

    return Check(f"{stage} rows", recipes, page)


def finished_work(auditing: Auditing, subject: str, _: str) -> Page:
    """Every document of a version that a recipe has finished is in the ledger."""
    recipe_id, corpus_id, version, ordinal_limit = subject.split(" ")
    stages_of_tools = itertools.product(auditing.subjects.tools, RECIPE_OF_STAGE)
    tool, stage = next((tool, stage) for tool, stage in stages_of_tools if _recipe(tool, stage) == recipe_id)
    return statement_page(
        auditing,
        queries.audited_rows.finished,
        recipe_id=recipe_id,
        corpus_id=corpus_id,
        version=int(version),
        ordinal_limit=int(ordinal_limit),
        stage=stage,
        filter_recipe_id=tool.filter_recipe_id,
        reads_record=tool.reads_record,
    )


def finished_versions(auditing: Auditing) -> list[str]:
    """The newest version of each corpus that each recipe has finished, by `finished_work` or by the numbers of a finished run."""
    rows = database.fetch_all(
        auditing.engine, queries.audited_rows.finished_newest, recipe_ids=auditing.subjects.recipe_ids()
    )
    detached = {row.recipe_id for row in auditing.detached()}
    attached = (row for row in rows if row.recipe_id not in detached)
    return [f"{row.recipe_id} {row.corpus_id} {row.version} {row.ordinal_limit}" for row in attached]


def numbered_runs(auditing: Auditing) -> list[str]:
    """Finished runs whose stored numbers can be counted again, each after those that its own may follow from."""
    rows = database.fetch_all(
        auditing.engine, queries.audited_rows.numbered_runs, run_ids=list(auditing.subjects.run_ids)
    )
    return [row.run_id for row in rows]


def run_numbers(auditing: Auditing, run_id: str, _: str) -> Page:
    """The stored numbers of a finished run are those that the rows give.

    They are not comparable where rows are damaged. If all runs of the corpus are looked at, those before are
    proven by now, and what changed since them is counted.
    """
    counts = database.fetch_one(auditing.engine, queries.audits.count, audit_id=auditing.audit_id)
    if counts.in_rows:
        return Page(items=1, unprovable=1)
    with auditing.engine.connect() as connection:
        stored = _comparable(_numbers(connection, run_id))
        proven = auditing.subjects.scope in ("all", "corpus")
        counted = _comparable(count_again(connection, run_id, from_earlier=proven))
        connection.rollback()
    page = Page(items=sum(map(len, stored.values())))
    for table, rows in stored.items():
        differing = [row for row in rows if row not in counted[table]]
        missing = [row for row in counted[table] if row not in rows]
        # A check that did not pass counts nothing, nor does a run without placebos.
        if (not rows and not table.startswith("finished")) or not (differing or missing):
            continue
        by_rows, kept = next(iter(missing), None), next(iter(differing), None)
        page.add(
            "changed",
            relation_of(table),
            run_id,
            f"expected the numbers that the rows give, found {max(len(differing), len(missing))} others in "
            f"{table}, such as {by_rows} by the rows, {kept} stored. The rows agree with the ledger and its "
            "hashes",
            f"Choose: `toolformer-ops audit --accept-numbers {run_id}` stores what the rows give. If the "
            "stored numbers are right, restore the rows from a backup; `--sample` computes calls again.",
            repair={"action": "store_numbers", "run_id": run_id},
        )
    return page


NUMBER_TABLES = (
    "finished_run_thresholds",
    "finished_run_gains",
    "finished_run_progress",
    "finished_run_yield",
    "finished_run_work",
    "checked_yields",
    "placebo_counts",
    "placebo_rates",
)
Numbers = dict[str, list[dict[str, Any]]]
"""By table, the rows of a run."""


def count_again(connection: Connection, run_id: str, *, from_earlier: bool = False) -> Numbers:
    """The numbers of a run, counted from the rows.

    They are there instead of those that are stored, until the transaction is rolled back. `from_earlier`:
    from those of earlier runs over its corpus, and what changed; else nothing that is stored is believed.
    """
    database.execute(
        connection, queries.audited_rows.forget_numbers, run_id=run_id, from_earlier=from_earlier
    )
    for row in database.fetch_all(connection, queries.numbers.tools, run_id=run_id):
        tool = load_run_tool(connection, run_id, row.tool)
        store_rates(connection, tool)
        counted = vars(count_kept(connection, tool))
        database.execute(connection, queries.checks.yield_record, run_id=run_id, tool=tool.tool, **counted)
    store_numbers(connection, run_id)
    return _numbers(connection, run_id)


def replace_numbers(
    connection: Connection, run_id: str, table: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Replace a run's stored numbers in a table by these."""
    with database.translating(f"numbers in {table}"):
        connection.execute(delete(sql_table(table)).where(column("run_id") == run_id))
        if rows:
            connection.execute(insert(sql_table(table, *map(column, rows[0]))), rows)


def relation_of(table: str) -> str:
    """What a finding about the numbers in a table names."""
    return "finished_run_numbers" if table.startswith("finished") else table


def _numbers(connection: Connection, run_id: str) -> Numbers:
    with database.translating(f"numbers of run {run_id}"):
        numbers: dict[str, list[dict[str, Any]]] = {}
        for table in NUMBER_TABLES:
            is_of_run = column("run_id") == run_id
            statement: Select[Any] = (
                select(literal_column("*")).select_from(sql_table(table)).where(is_of_run)
            )
            rows = connection.execute(statement)
            numbers[table] = [dict(row) for row in rows.mappings()]
        return numbers


def _comparable(numbers: Numbers) -> Numbers:
    """Without what is no property of the data: moments, seconds, and which document was the first to ask an input."""
    comparable: dict[str, list[dict[str, Any]]] = {}
    for table, rows in numbers.items():
        comparable[table] = []
        for row in rows:
            if row.get("reason") in ("executed", "from_cache"):
                continue
            numbers_of_row: dict[str, Any] = {}
            for name, value in row.items():
                if name in ("run_id", "seconds", "counted_at"):
                    continue
                # The ends of an interval may differ in their last digits on another machine.
                numbers_of_row[name] = float(f"{value:.9g}") if isinstance(value, float) else value
            comparable[table].append(numbers_of_row)
    return comparable


def _recipe(tool: Row[Any], stage: str) -> str | None:
    recipe_id: str | None = getattr(tool, RECIPE_OF_STAGE[stage])
    return recipe_id


def _once(auditing: Auditing) -> Sequence[str]:
    return [""] if auditing.subjects.has_rows else []


ROW_CHECKS = (
    Check("documents", _once, documents),
    Check("corpora", lambda auditing: auditing.subjects.corpus_ids, corpus_sums),
    Check("recipes", _once, recipe_ids),
    Check("partitions", _once, partitions),
    *(stage_rows(stage) for stage in RECIPE_OF_STAGE),
    Check("finished work", finished_versions, finished_work),
)
"""In this order: a later check does not report what an earlier one explains."""
NUMBER_CHECKS = (Check("numbers of runs", numbered_runs, run_numbers),)
"""After those of rows and of releases, which the numbers are counted from."""

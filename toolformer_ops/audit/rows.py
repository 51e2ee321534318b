"""Checks of Postgres: ids, rows against the ledger, sums of corpora, runs and their stored numbers.

Most are one statement a page (sql/queries/audit_*.sql). Postgres computes the hashes and ids by the functions that the stages'
hashes are made with (migrations 0028, 0029).
"""

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from toolformer_ops.audit.auditing import (
    NO_DOCUMENT,
    Auditing,
    Check,
    Finding,
    Page,
    ToolOfRun,
    statement_page,
)
from toolformer_ops.runs.recipes import Recipe
from toolformer_ops.runs.run_tools import RECIPE_OF_STAGE
from toolformer_ops.stages.ingestion import REFUSED_ROWS
from toolformer_ops.storage import database

FIRST_VERSION_WITH_THESE_IDS = 5
"""Since this sampling version the ids of calls are made as today; those of earlier recipes are not compared."""


def documents(auditing: Auditing, _: str, position: str) -> Page:
    """Ids of documents and variants are the hashes of their content, and a corpus holds each."""
    subjects = auditing.subjects
    return statement_page(
        auditing,
        "audit_documents",
        after=position or NO_DOCUMENT,
        corpus_ids=None if subjects.is_all else [corpus_id for corpus_id, _ in subjects.corpora],
        orphans_after_seconds=auditing.ages.orphans_after.total_seconds(),
        page_size=auditing.page_documents,
    )


def corpus_sums(auditing: Auditing, corpus_id: str, _: str) -> Page:
    """Records in = documents + duplicates + rejected, for each file and version of a corpus, counted from the rows."""
    return statement_page(auditing, "audit_corpus", corpus_id=corpus_id, refused_rows=REFUSED_ROWS)


def recipe_ids(auditing: Auditing, _: str, __: str) -> Page:
    """Ids of recipes are the hashes of their definitions, and all that runs name are there."""
    page = Page()
    with database.transaction(auditing.engine) as connection:
        rows = database.fetch_all(
            connection,
            "audit_recipes",
            recipe_ids=None if auditing.subjects.is_all else _recipe_ids(auditing.subjects.tools),
        )
    for row in rows:
        page.items += 1
        if not row.is_there:
            page.findings.append(
                Finding(
                    "lost",
                    "recipes",
                    row.recipe_id,
                    f"expected the recipe of {row.stage} of {row.tool}, found no row",
                    "Start a run with the same choices, which writes it again, or restore the row from a backup.",
                )
            )
            continue
        found = Recipe(row.stage, row.tool, row.definition, row.parent_recipe_id).recipe_id
        if found != row.recipe_id:
            page.findings.append(
                Finding(
                    "changed",
                    "recipes",
                    row.recipe_id,
                    f"expected the definition that the id is the hash of, found one with the hash {found}",
                    "Restore the row from a backup: it is what the rows of this recipe are explained by.",
                )
            )
    return page


def stage_rows(stage: str) -> Callable[[Auditing, str, str], Page]:
    """The check of one stage: its rows against their hashes in the ledger, and against their definitions."""

    def page(auditing: Auditing, recipe_id: str, position: str) -> Page:
        tool = next(tool for tool in auditing.subjects.tools if _recipe(tool, stage) == recipe_id)
        parameters: dict[str, object] = {}
        if stage != "filter":
            stages = list(RECIPE_OF_STAGE)
            parameters["previous_recipe_id"] = _recipe(tool, stages[stages.index(stage) - 1])
        with database.transaction(auditing.engine) as connection:
            known = database.fetch_all(connection, "audit_recipes", recipe_ids=[recipe_id])
        definition = known[0].definition if known and known[0].is_there else {}
        if stage == "sample":
            parameters["checks_ids"] = definition.get("sampling_version", 0) >= FIRST_VERSION_WITH_THESE_IDS
        elif stage == "execute":
            parameters |= {
                "sampling_recipe_id": tool.sampling_recipe_id,
                "tool": tool.tool,
                "tool_version": tool.tool_version,
            }
        elif stage == "score":
            parameters["prune_below"] = definition.get("prune_below")
        elif stage == "placebo":
            with database.transaction(auditing.engine) as connection:
                parents = database.fetch_all(connection, "audit_recipes", recipe_ids=[tool.scoring_recipe_id])
            parent = parents[0].definition if parents and parents[0].is_there else {}
            parameters["prune_below"] = parent.get("prune_below")
        return statement_page(
            auditing,
            f"audit_{stage}",
            recipe_id=recipe_id,
            after=position or NO_DOCUMENT,
            page_size=auditing.page_documents,
            **parameters,
        )

    return page


def finished_work(auditing: Auditing, subject: str, _: str) -> Page:
    """Every document of a version that a recipe has finished is in the ledger."""
    recipe_id, corpus_id, version, ordinal_limit = subject.split(" ")
    tool, stage = next(
        (tool, stage)
        for tool in auditing.subjects.tools
        for stage in RECIPE_OF_STAGE
        if _recipe(tool, stage) == recipe_id
    )
    return statement_page(
        auditing,
        "audit_finished",
        recipe_id=recipe_id,
        corpus_id=corpus_id,
        version=int(version),
        ordinal_limit=int(ordinal_limit),
        stage=stage,
        filter_recipe_id=tool.filter_recipe_id,
        reads_record=tool.reads_record,
    )


def finished_versions(auditing: Auditing) -> list[str]:
    """The newest version of each corpus that each recipe has finished."""
    with database.transaction(auditing.engine) as connection:
        rows = database.fetch_all(connection, "audit_finished_newest", recipe_ids=_recipe_ids(auditing.subjects.tools))
    return [f"{row.recipe_id} {row.corpus_id} {row.version} {row.ordinal_limit}" for row in rows]


def runs(auditing: Auditing, _: str, __: str) -> Page:
    """Runs that are said to be running give signs of life."""
    return statement_page(
        auditing,
        "audit_runs",
        run_ids=list(auditing.subjects.run_ids),
        stuck_after_seconds=auditing.ages.stuck_after.total_seconds(),
    )


def numbered_runs(auditing: Auditing) -> list[str]:
    """Finished runs whose stored numbers can be computed again."""
    with database.transaction(auditing.engine) as connection:
        rows = database.fetch_all(connection, "audit_numbered_runs", run_ids=list(auditing.subjects.run_ids))
    return [row.run_id for row in rows]


def run_numbers(auditing: Auditing, run_id: str, _: str) -> Page:
    """The stored numbers of a finished run are those that the rows give; not comparable where rows are damaged."""
    if auditing.has_findings():
        return Page(items=1, unprovable=1)
    with auditing.engine.connect() as connection:
        stored = _numbers(connection, run_id)
        database.execute(connection, "numbers_forget", run_id=run_id)
        counted = _numbers(connection, run_id)
        connection.rollback()
    page = Page(items=len(stored))
    differing = sorted(name for name in {*stored, *counted} if stored.get(name) != counted.get(name))
    if differing:
        example = differing[0]
        page.findings.append(
            Finding(
                "changed",
                "finished_run_numbers",
                run_id,
                f"expected the numbers that the rows give, found others in {len(differing)} places, such as {' '.join(example)}: "
                f"{counted.get(example)} by the rows, {stored.get(example)} stored",
                "Store them again (--repair).",
                repair={"action": "store_numbers", "run_id": run_id},
            )
        )
    return page


def _numbers(connection: Connection, run_id: str) -> dict[tuple[str, str, str], list[int | None]]:
    rows = database.fetch_all(connection, "audit_numbers", run_id=run_id)
    return {(row.relation, row.tool, row.name): row.numbers for row in rows}


def _recipe(tool: ToolOfRun, stage: str) -> str | None:
    recipe_id: str | None = getattr(tool, RECIPE_OF_STAGE[stage])
    return recipe_id


def _recipe_ids(tools: Sequence[ToolOfRun], stages: Collection[str] = RECIPE_OF_STAGE) -> list[str]:
    """The recipes of these stages of the tools, each once."""
    found = (_recipe(tool, stage) for tool in tools for stage in stages)
    return [recipe_id for recipe_id in dict.fromkeys(found) if recipe_id]


def _once(auditing: Auditing) -> Sequence[str]:
    return [""] if auditing.subjects.has_rows else []


def _recipes_of(stage: str) -> Callable[[Auditing], Sequence[str]]:
    return lambda auditing: _recipe_ids(auditing.subjects.tools, [stage]) if auditing.subjects.has_rows else []


ROW_CHECKS = (
    Check("documents", _once, documents),
    Check("corpora", lambda auditing: [corpus_id for corpus_id, _ in auditing.subjects.corpora], corpus_sums),
    Check("recipes", _once, recipe_ids),
    *(Check(f"{stage} rows", _recipes_of(stage), stage_rows(stage)) for stage in RECIPE_OF_STAGE),
    Check("finished work", finished_versions, finished_work),
    Check("runs", _once, runs),
)
"""In this order: a later check does not report what an earlier one explains."""
NUMBER_CHECKS = (Check("numbers of runs", numbered_runs, run_numbers),)
"""After those of rows and of releases, which the numbers are counted from."""

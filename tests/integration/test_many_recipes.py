"""Questions in a database with the partitions of many recipes, of which a run has five a tool."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from tests.annotated_runs import STAGES, AnnotatedRun, recipe_id
from tests.run_sql import run_sql
from toolformer_ops.config import Settings
from toolformer_ops.storage.postgres import database, partitions

SUM = "Out of 1400 people, 400 passed, that is 29 %."
SESSIONS = 20


def make_partitions(settings: Settings, chains: int) -> None:
    """The partitions of so many other tools of runs, each of five recipes."""
    engine = database.connect(settings)
    for chain in range(chains):
        with database.transaction(engine) as connection:
            for number, stage in enumerate((*STAGES, "placebo")):
                partitions.ensure_partitions(connection, stage, f"{chain:015x}{number}")
    engine.dispose()


@pytest.fixture
def run(settings):
    """A run that is not finished, so that views count its numbers, with a kept call and a placebo."""
    annotated = AnnotatedRun(settings, {"Calculator": 0.5})
    document = annotated.add_text(SUM)
    call = annotated.add_call("Calculator", document, " 29", "400 / 1400", "0.29", saves=1.25)
    annotated.add_placebo("Calculator", document, call, information=1.0)
    annotated.complete("Calculator")
    return annotated


PARTITIONS_LOCKED = """
select relname
from pg_locks
join pg_class on pg_class.oid = relation
join pg_inherits on inhrelid = relation
where pid = pg_backend_pid() and relkind = 'r'
"""
OWN = {recipe_id(stage, "Calculator") for stage in (*STAGES, "placebo")}


def recipes_locked(connection: Connection) -> set[str]:
    """The recipes whose partitions the transaction of a connection has locked."""
    with database.raw_cursor(connection) as cursor:
        cursor.execute(PARTITIONS_LOCKED)
        return {name.rpartition("_")[2] for (name,) in cursor.fetchall()}


@pytest.mark.parametrize(
    "question",
    [
        "select * from annotation_progress where run_id = 'run-1'",
        "select * from yield_by_stage where run_id = 'run-1'",
        "select * from threshold_counts where run_id = 'run-1'",
        "select * from gain_histogram where run_id = 'run-1'",
        "select * from work_of_stages((select rt from run_tools rt))",
        "select * from how_long_does_a_document_take('run-1')",
        "select tokens_kept(filter_recipe_id, array[document_id]) from run_tools cross join documents",
        "select * from best_kept_calls('run-1', 'Calculator', 5)",
        "select * from undecided_at('run-1', 'Calculator', 0.25)",
    ],
)
def test_a_question_about_a_run_locks_no_partition_of_another_recipe(settings, run, question):
    make_partitions(settings, 2)
    with database.transaction(run.engine) as connection, database.raw_cursor(connection) as cursor:
        for _ in range(7):  # Postgres may plan without values from the sixth time on
            cursor.execute(question)
            assert cursor.fetchall()
        locked = recipes_locked(connection)
    assert locked
    assert locked <= OWN


def asked_at_once(settings: Settings, question: str) -> tuple[list[int], int]:
    """What each of the sessions answers to a question that all ask at once, and how many locks they hold together."""
    all_have_locks = threading.Barrier(SESSIONS)

    def ask(_: int) -> tuple[int, int]:
        engine = database.connect(settings)
        with engine.begin() as connection, database.raw_cursor(connection) as cursor:
            cursor.execute(question)
            [[calls]] = cursor.fetchall()
            cursor.execute("select count(*) from pg_locks where pid = pg_backend_pid()")
            [[locks]] = cursor.fetchall()
            all_have_locks.wait(timeout=120)
        engine.dispose()
        return calls, locks

    with ThreadPoolExecutor(SESSIONS) as threads:
        answers = list(threads.map(ask, range(SESSIONS)))
    return [calls for calls, _ in answers], sum(locks for _, locks in answers)


def room_without_setting(run: AnnotatedRun) -> int:
    """How many locks Postgres has room for if `max_locks_per_transaction` is not set."""
    [[room]] = run_sql(run.engine, "select 64 * cast(current_setting('max_connections') as integer)")
    return int(room)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["kept_calls", "candidates"])
def test_twenty_sessions_at_once_ask_a_view_among_seven_hundred_recipes(settings, run, view):
    make_partitions(settings, 140)
    calls, locks = asked_at_once(settings, f"select count(*) from {view} where run_id = 'run-1'")
    assert calls == [1] * SESSIONS
    # Were it few locks, the sessions would fit into the room that Postgres has without its setting.
    assert locks > room_without_setting(run)

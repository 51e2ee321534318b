"""What examples and views read on 1,000 and on 4,000 texts, as `explain (analyze, buffers)` counts it."""

from contextlib import ExitStack

import pytest

from benchmarks import growth
from benchmarks.growth import Growth, Question
from benchmarks.report import table
from tests.servers import copied_database, settings_of
from toolformer_ops.local import postgres
from toolformer_ops.storage.postgres import database

SMALL, LARGE = 1_000, 4_000


@pytest.fixture(scope="module")
def databases(postgres_server, migrated_template, tmp_path_factory):
    """A database of each size."""
    folder = tmp_path_factory.mktemp("corpora")
    with ExitStack() as stack:
        engines = []
        for texts in (SMALL, LARGE):
            name = stack.enter_context(copied_database(postgres_server, migrated_template, postgres.OWNER))
            settings = settings_of(postgres_server.dsn(name, postgres.OWNER))
            engine = database.connect(settings)
            stack.callback(engine.dispose)
            growth.fill(settings, engine, folder / f"{texts}.jsonl", texts)
            engines.append(engine)
        yield engines[0], engines[1]


@pytest.fixture(scope="module")
def growths(databases):
    return growth.grown(*databases, LARGE / SMALL)


def test_no_example_or_view_reads_more_than_in_proportion_to_the_texts(growths):
    steep = [query.row() for query in growths if query.is_steep]
    assert not steep, table(steep)


def test_every_view_has_rows_to_be_read(growths):
    whole = {
        query.name: query
        for query in growths
        if query.name.startswith("view ") and query.name.count(" ") == 1
    }
    assert len(whole) == len(list((database.SQL_DIR / "views").glob("*.sql")))
    assert [name for name, query in whole.items() if not query.small.returned] == []


@pytest.mark.parametrize(
    ("comparison", "is_steep"),
    [
        ("one.ordinal = other.ordinal", False),
        # 100 texts with 100, and 400 with 400: 16 times the rows.
        ("one.ordinal < other.ordinal", True),
    ],
)
def test_a_query_is_steep_if_it_compares_each_row_with_all(databases, comparison, is_steep):
    members = "(select ordinal from corpus_documents where ordinal % 10 = 0)"
    asked = [Question("join", f"select from {members} one join {members} other on {comparison}")]
    small, large = (growth.read_all(engine, asked)["join"] for engine in databases)
    assert Growth(name="join", small=small, large=large, texts=LARGE / SMALL).is_steep is is_steep


def test_pages_that_a_function_reads_are_counted(databases):
    asked = [Question("function", "select * from undecided_at('done', 'Calculator', 0.5)")]
    [reading] = growth.read_all(databases[0], asked).values()
    assert reading.rows == 1
    assert reading.pages > 10

"""Every statement that the code names is in `sql/queries`, and every statement there is named by the code."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolformer_ops.config import REPOSITORY
from toolformer_ops.storage.postgres import queries

FOLDER = REPOSITORY / "sql" / "queries"


def named(folder: str) -> Iterator[tuple[str, str]]:
    """`queries.TOPIC.NAME` of all programs below the folder; of `queries.TOPIC[...]` with an empty name."""
    for path in (REPOSITORY / folder).rglob("*.py"):
        program = path.read_text(encoding="utf-8")
        if "toolformer_ops.storage.postgres import" in program:  # queries of attention are in other programs
            yield from re.findall(r"\bqueries\.([a-z_]+)(?:\.([a-z_]+)\b|\[)", program)


def stored() -> set[tuple[str, str]]:
    """Topic and name of each heading, as a reader of the files finds them."""
    return {
        (path.stem, line.removeprefix("-- name:").strip())
        for path in FOLDER.glob("*.sql")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("-- name")
    }


def test_the_code_names_exactly_the_stored_statements():
    in_package = set(named("toolformer_ops")) | set(
        named("docs")
    )  # the pages of reference ask what the tables are
    for_any_name = {topic for topic, name in in_package if not name}
    asked = {
        (topic, name) for topic, name in in_package | set(named("tests")) | set(named("benchmarks")) if name
    }
    assert asked - stored() == set(), "no such statement"
    assert {(topic, name) for topic, name in stored() - in_package if topic not in for_any_name} == set(), (
        "never used"
    )


def test_a_statement_that_does_not_exist_is_an_error_with_the_file():
    for topic, name in stored():
        statement = getattr(queries, topic)[name]
        assert (statement.name, "-- name" in statement.sql) == (f"{topic}.{name}", False)
    for topic, name in (("no_topic", "by_id"), ("runs", "no_statement")):
        with pytest.raises(AttributeError, match=str(Path("queries") / f"{topic}.sql")):
            getattr(getattr(queries, topic), name)

"""Words for reasons: every reason that the code writes has some."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolformer_ops.config import REPOSITORY
from toolformer_ops.runs.reasons import TITLES, title
from toolformer_ops.tools.databases import reasons as query_reasons

PACKAGE = REPOSITORY / "toolformer_ops"
OUTPUTS = sorted(
    file
    for folder in (
        "storage",
        "tools",
        "tools/retrieval",
        "tools/files",
        "tools/servers",
        "tools/databases",
        "tools/functions",
        "annotation",
    )
    for file in (PACKAGE / folder).glob("*.py")
)


def written_reasons(file: Path) -> Iterator[str]:
    """Reasons that a module writes: of decisions, `(False, "reason")`, and of outputs, `ToolOutput.none("reason")`."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[0], ast.Constant):
            values = [node.elts[1]] if isinstance(node.elts[0].value, bool) else []
        elif isinstance(node, ast.keyword) and node.arg == "reason":
            values = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "none":
            values = node.args[:1]
        else:
            continue
        for value in values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


@pytest.mark.parametrize("file", OUTPUTS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_each_reason_that_a_module_writes_has_words(file):
    assert [reason for reason in written_reasons(file) if reason not in TITLES] == []


def test_reasons_are_looked_for_where_they_are_written():
    reasons = {reason for file in OUTPUTS for reason in written_reasons(file)}
    assert {"fewer_than_three_numbers", "empty_query"} <= reasons


def test_each_reason_of_a_query_has_words():
    named = {value for name, value in vars(query_reasons).items() if name.isupper()}
    assert sorted(named - set(TITLES)) == []


def test_each_release_outcome_of_the_database_has_words():
    text = (REPOSITORY / "sql" / "views" / "12_candidates.sql").read_text(encoding="utf-8")
    outcomes = re.search(r"candidates\.release_outcome is\s+'(.*?)';", re.sub(r"'\n\s+'", "", text))
    assert outcomes is not None
    names = re.findall(r"\b([a-z]+(?:_[a-z]+)+):", outcomes[1])
    assert [name for name in names if name not in TITLES] == []


def test_a_reason_of_a_tool_of_others_is_read_as_it_is_spelled():
    assert title("shop_is_closed") == "shop is closed"

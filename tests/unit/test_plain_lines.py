"""How plain lines are: each figure counts what it says."""

import ast
from collections.abc import Callable, Iterator

import pytest

from benchmarks import plain_lines
from benchmarks.plain_lines import Figure, Source

COUNTED: list[tuple[Callable[[Source], Iterator[int]], str, list[int]]] = [
    (plain_lines.comprehensions, "a = [x for x in y]\nb = sum(x for x in y)", [1, 2]),
    (plain_lines.nested_comprehensions, "[[x for x in y] for y in z]", [1]),
    (plain_lines.nested_comprehensions, "[x for y in z for x in y]", [1]),
    (plain_lines.nested_comprehensions, "[x for x in y]", []),
    (plain_lines.long_lines, f"a = 1\n# {'x' * 109}\n# {'x' * 108}", [2]),
    (plain_lines.very_long_lines, f"# {'x' * 199}\n# {'x' * 198}", [1]),
    (plain_lines.short_helpers, "def _a():\n    return 1\nb = _a()", [1]),
    (plain_lines.short_helpers, "def _a():\n    return 1\nb = _a() + _a()", []),
    (plain_lines.short_helpers, "def _a():\n" + "    x()\n" * 5 + "b = _a()", []),
    (plain_lines.vague_names, "found = 1\nlosses = found", [1]),
    (plain_lines.vague_names, "def f(given, text): ...", [1]),
    (plain_lines.vague_names, "of_text = 1\noffset = 2", [1]),
    (plain_lines.positional_constructors, "Call(1, 2, 3, 4, 5, 6)\nCall(1, 2, 3, 4, 5)", [1]),
    (plain_lines.positional_constructors, "call(1, 2, 3, 4, 5, 6)", []),
    (plain_lines.dangling_docstrings, 'size = 1\n"""Of the memory."""\n', [2]),
    (plain_lines.dangling_docstrings, 'size = 1\n"""Bytes of the memory."""\n', []),
    (plain_lines.worn_words, "# Nobody stands in place of somebody.", [1, 1, 1, 1]),
    (plain_lines.tests_of_two_claims, "def test_a_and_b(): ...\ndef test_a(): ...", [1]),
    (plain_lines.tests_with_a_loop, "def test_a():\n    for x in y: ...", [1]),
    (plain_lines.tests_with_a_loop, "def test_a():\n    for x in (1, 2): ...", []),
    (plain_lines.tests_with_many_asserts, "def test_a():\n" + "    assert x\n" * 6, [1]),
    (plain_lines.tests_with_many_asserts, "def test_a():\n" + "    assert x\n" * 5, []),
]


def source(text: str) -> Source:
    return Source("a.py", text, ast.parse(text))


@pytest.mark.parametrize(("count", "text", "lines"), COUNTED)
def test_a_figure_counts_the_lines_that_it_is_about(count, text, lines):
    assert list(count(source(text))) == lines


@pytest.mark.parametrize(
    ("per", "value"),
    [("", 2.0), ("thousand lines", 500.0), ("hundred lines", 50.0), ("hundred tests", 100.0)],
)
def test_a_value_is_in_the_unit_of_its_figure(per, value):
    figure = Figure("names", plain_lines.vague_names, aim=0, limit=0, per=per)
    text = "found = 1\ngiven = 2\ndef test_a(): ...\ndef test_b(): ...\n"
    [result] = plain_lines.measured([source(text)], [figure])
    assert result.value == value

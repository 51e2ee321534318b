"""How plain the lines are, in figures: the second part of `python -m benchmarks.structure`.

Each figure has an aim, and a limit that `make lint` holds (`python -m benchmarks.structure --lint`): the state
of the day on which it was set, so that lines get plainer and never denser. Whoever brings a figure down lowers
its limit.

Reads source text and imports nothing of the package.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LONG_LINE = 110
LONG_STATEMENT_LINE = 200
SHORT_BODY = 4
MANY_FIELDS = 6
VAGUE_NAME = re.compile(r"(?:found|asked|given|held|known|made|some|of_\w+|\w+_of_\w+_of_\w+)$")
"""Names that say how a value came about, not what it is."""
DANGLING = re.compile(r"(?:The same|As `|Of )")
"""A docstring that begins so is a sentence only together with the name above it."""
WORN_WORDS = re.compile(r"\b(?:nobody|somebody|one that|is there|in place of|stands)\b", re.IGNORECASE)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Source:
    """One Python file."""

    name: str
    """Its path below the folder that is measured."""
    text: str
    tree: ast.Module

    @classmethod
    def of_folder(cls, folder: Path) -> list["Source"]:
        """All Python files of a folder, in the order of their names."""
        sources = []
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            sources.append(cls(str(path.relative_to(folder)), text, ast.parse(text)))
        return sources

    @classmethod
    def of_sql(cls, folder: Path) -> list["Source"]:
        """All SQL files of a folder, in the order of their names; they have no syntax tree."""
        nothing = ast.Module(body=[], type_ignores=[])
        paths = sorted(folder.rglob("*.sql"))
        return [
            cls(str(path.relative_to(folder)), path.read_text(encoding="utf-8"), nothing) for path in paths
        ]


@dataclass(frozen=True)
class Figure:
    """What is counted, and how much of it may be."""

    name: str
    places: Callable[[Source], Iterator[int]]
    """The line of each occurrence in a file."""
    aim: float
    limit: float
    """In the unit of `aim`; `make lint` fails above it."""
    per: str
    """`thousand lines`, `hundred lines`, `hundred tests`, or empty: all in all."""


@dataclass(frozen=True)
class Measured:
    """A figure of a folder."""

    figure: Figure
    value: float
    places: list[str]
    """`file:line` of each occurrence."""

    @property
    def row(self) -> str:
        """The figure as a line of the table."""
        unit = f"a {self.figure.per}" if self.figure.per else "in all"
        return f"{self.figure.name:52}{self.value:9.1f}{self.figure.aim:8g}{self.figure.limit:8g}  {unit:16}{len(self.places):7}"


def comprehensions(source: Source) -> Iterator[int]:
    """Comprehensions and generators."""
    for node in ast.walk(source.tree):
        if isinstance(node, COMPREHENSIONS):
            yield node.lineno


def nested_comprehensions(source: Source) -> Iterator[int]:
    """Comprehensions that are within another, or that have two `for`."""
    for node in ast.walk(source.tree):
        if isinstance(node, COMPREHENSIONS):
            within = [
                inner for inner in ast.walk(node) if isinstance(inner, COMPREHENSIONS) and inner is not node
            ]
            if within or len(node.generators) > 1:
                yield node.lineno


def very_long_lines(source: Source) -> Iterator[int]:
    """Lines of more than 200 characters."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if len(line) > LONG_STATEMENT_LINE:
            yield number


def short_helpers(source: Source) -> Iterator[int]:
    """Private functions that their module names in one other place, with a body of at most four lines."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
            continue
        is_private = node.name.startswith("_") and not node.name.startswith("__")
        if not is_private or len(re.findall(rf"\b{node.name}\b", source.text)) != 2:
            continue
        statements = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if statements and statements[-1].end_lineno - statements[0].lineno < SHORT_BODY:  # type: ignore[operator]
            yield node.lineno


def long_lines(source: Source) -> Iterator[int]:
    """Lines of more than 110 characters."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        if len(line) > LONG_LINE:
            yield number


def vague_names(source: Source) -> Iterator[int]:
    """Bindings whose name says how the value came about: found, given, of_text."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if VAGUE_NAME.match(name):
                yield node.lineno


def positional_constructors(source: Source) -> Iterator[int]:
    """Calls of a class with six or more positional arguments."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and len(node.args) >= MANY_FIELDS:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if re.match(r"_?[A-Z][a-z]", name):
                yield node.lineno


def dangling_docstrings(source: Source) -> Iterator[int]:
    """Docstrings, of attributes as well, that begin "The same", "As `x`" or "Of"."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        text = node.value.value
        if isinstance(text, str) and DANGLING.match(text):
            yield node.lineno


def worn_words(source: Source) -> Iterator[int]:
    """Words of the house that a plain sentence does without."""
    for number, line in enumerate(source.text.splitlines(), start=1):
        for _ in WORN_WORDS.findall(line):
            yield number


def tests_of(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The test functions of a file."""
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node


def tests_of_two_claims(source: Source) -> Iterator[int]:
    """Tests whose name holds `_and_`."""
    return (test.lineno for test in tests_of(source) if "_and_" in test.name)


def tests_with_a_loop(source: Source) -> Iterator[int]:
    """Tests that loop over anything but a table that is written in the loop."""
    for test in tests_of(source):
        loops = [node for node in ast.walk(test) if isinstance(node, (ast.For, ast.While))]
        if any(
            not isinstance(getattr(loop, "iter", None), (ast.Tuple, ast.List, ast.Dict)) for loop in loops
        ):
            yield test.lineno


def tests_with_many_asserts(source: Source) -> Iterator[int]:
    """Tests with more than five asserts."""
    for test in tests_of(source):
        if sum(isinstance(node, ast.Assert) for node in ast.walk(test)) > 5:
            yield test.lineno


THOUSAND_LINES = "thousand lines"
HUNDRED_LINES = "hundred lines"
HUNDRED_TESTS = "hundred tests"
OF_PACKAGE = (
    Figure("comprehensions", comprehensions, aim=15, limit=26.5, per=THOUSAND_LINES),
    Figure("comprehensions within another", nested_comprehensions, aim=1, limit=0.1, per=THOUSAND_LINES),
    Figure("lines of more than 110 characters", long_lines, aim=2, limit=0.9, per=HUNDRED_LINES),
    Figure("names such as found, given, of_text", vague_names, aim=50, limit=0, per=""),
    Figure(
        "constructors of six and more positional arguments", positional_constructors, aim=0, limit=0, per=""
    ),
    Figure('docstrings that begin "The same", "As `x`", "Of"', dangling_docstrings, aim=0, limit=2, per=""),
    Figure("private functions of one caller and at most four lines", short_helpers, aim=20, limit=39, per=""),
    Figure("nobody, somebody, one that, is there, in place of, stands", worn_words, aim=30, limit=20, per=""),
)
OF_SQL = (
    Figure("lines of SQL of more than 110 characters", long_lines, aim=3, limit=3.2, per=HUNDRED_LINES),
    Figure("lines of SQL of more than 200 characters", very_long_lines, aim=0, limit=82, per=""),
)
OF_TESTS = (
    Figure("tests whose name holds _and_", tests_of_two_claims, aim=10, limit=0.5, per=HUNDRED_TESTS),
    Figure("tests that hold a loop", tests_with_a_loop, aim=15, limit=9.3, per=HUNDRED_TESTS),
    Figure(
        "tests with more than five asserts", tests_with_many_asserts, aim=10, limit=4.4, per=HUNDRED_TESTS
    ),
)


def measured(sources: Sequence[Source], figures: Sequence[Figure]) -> list[Measured]:
    """The figures of some files."""
    lines = sum(source.text.count("\n") for source in sources)
    tests = sum(1 for source in sources for _ in tests_of(source))
    whole = {THOUSAND_LINES: lines / 1000, HUNDRED_LINES: lines / 100, HUNDRED_TESTS: tests / 100, "": 1.0}
    results = []
    for figure in figures:
        places = [f"{source.name}:{line}" for source in sources for line in figure.places(source)]
        results.append(Measured(figure, len(places) / (whole[figure.per] or 1.0), places))
    return results


def table(rows: Sequence[Measured]) -> str:
    """The figures with their aims and limits."""
    head = f"{'':52}{'now':>9}{'aim':>8}{'limit':>8}  {'':16}{'places':>7}"
    return "\n".join([head, *(each.row for each in rows)])

"""The figures of how the package reads, on a package that is small enough to count by eye."""

from pathlib import Path

from benchmarks import structure

PROGRAM = """from small import errors
from small.lower import tables

def build():
    # A comment, and '# none' in a string.
    return Table(1, 2, 3, 4, 5, 6), Row(1, 2, 3, 4, 5), _once(), _twice(), _twice()

def _once(): ...
def _twice(): ...
"""


def test_a_small_package_is_measured_as_one_counts_it_by_eye(tmp_path: Path) -> None:
    for room, program in (("upper", PROGRAM), ("lower", "def _once(): ...\n")):
        (tmp_path / "small" / room).mkdir(parents=True)
        (tmp_path / "small" / room / "tables.py").write_text(program, encoding="utf-8")
    rooms = structure.measure(tmp_path / "small")
    upper, lower = rooms["upper"], rooms["lower"]
    assert (upper.private_once, lower.private_once) == (["upper/tables.py:8 _once"], [])
    assert upper.long_calls == ["upper/tables.py:6 Table (6)"]  # from six positional arguments on
    assert (upper.functions, upper.lines, upper.comments, lower.functions) == (3, 9, 1, 1)
    assert (upper.imports, lower.imports) == ({"errors", "lower"}, set())

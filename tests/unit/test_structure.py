"""The figures of how the package reads, on a package that is small enough to count by eye."""

from pathlib import Path

import pytest

from benchmarks import structure


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "small"
    (root / "upper").mkdir(parents=True)
    (root / "lower").mkdir()
    (root / "upper" / "rooms.py").write_text(
        "from small import errors\n"
        "from small.lower import tables\n"
        "\n"
        "def build():\n"
        "    # A comment, and '# none' in a string.\n"
        "    return Table(1, 2, 3, 4, 5, 6), Row(1, 2, 3, 4, 5), _once(), _twice(), _twice()\n"
        "\n"
        "def _once(): ...\n"
        "def _twice(): ...\n",
        encoding="utf-8",
    )
    (root / "lower" / "tables.py").write_text("def _once(): ...\n", encoding="utf-8")
    (root / "errors.py").write_text("class AnyError(Exception):\n    def __str__(self): return ''\n", encoding="utf-8")
    return root


def test_a_private_function_counts_where_its_module_names_it_in_one_other_place(package: Path) -> None:
    rooms = structure.measure(package)
    assert rooms["upper"].private_once == ["upper/rooms.py:8 _once"]
    assert rooms["lower"].private_once == [], "it is defined there and never called"
    assert (rooms["upper"].functions, rooms["lower"].functions, rooms["errors"].functions) == (3, 1, 1)


def test_constructor_calls_count_from_six_positional_arguments_on(package: Path) -> None:
    assert structure.measure(package)["upper"].long_calls == ["upper/rooms.py:6 Table (6)"]


def test_lines_comments_and_imports_are_counted_by_room(package: Path) -> None:
    rooms = structure.measure(package)
    assert (rooms["upper"].lines, rooms["lower"].lines, rooms["errors"].lines) == (9, 1, 2)
    assert rooms["upper"].comments == 1
    assert rooms["upper"].imports == {"errors", "lower"}
    assert rooms["lower"].imports == set()

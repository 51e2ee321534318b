"""How the package reads, in figures: `python -m benchmarks.structure`.

Counts, for the package and for each room (a folder of `toolformer_ops/`, or a module at its root):

- lines of Python;
- modules at the root, without `__init__.py`;
- functions and methods that are private (`_name`, not `__name__`) and that their module names in exactly one
  other place: a function that is called once must explain more than its body;
- calls with six or more positional arguments whose callee is a class by its name (`Capitalised(...)`);
- lines of comments, without docstrings;
- arrows between rooms: room A imports room B, at the top of a module or inside a function;
- lines and files of SQL.

Then how plain its lines and those of the tests are (`plain_lines.py`). `--lint` prints what exceeds its limit
alone, and ends with 1 if anything does.

It reads source text and imports nothing of the package.
"""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import typer

from benchmarks.plain_lines import OF_PACKAGE, OF_SQL, OF_TESTS, Source, measured, table

PACKAGE = Path(__file__).resolve().parent.parent / "toolformer_ops"
TESTS = PACKAGE.parent / "tests"
SQL = PACKAGE.parent / "sql"
MANY_ARGUMENTS = 6

app = typer.Typer(add_completion=False)


@dataclass
class RoomFigures:
    """What was counted in one room."""

    lines: int = 0
    comments: int = 0
    functions: int = 0
    private_once: list[str] = field(default_factory=list)
    """`file:line name` of each private function with a single use."""
    long_calls: list[str] = field(default_factory=list)
    """`file:line Class (arguments)` of each constructor call with many positional arguments."""
    imports: set[str] = field(default_factory=set)
    """The other rooms that it imports."""


def measure(package: Path) -> dict[str, RoomFigures]:
    """The figures of each room of a package."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    rooms: dict[str, RoomFigures] = defaultdict(RoomFigures)
    for path, text in sources.items():
        room = rooms[room_of(path.relative_to(package))]
        room.lines += text.count("\n")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        room.comments += sum(token.type == tokenize.COMMENT for token in tokens)
        _count_definitions(room, path.relative_to(package), ast.parse(text), text)
        room.imports |= set(imported_rooms(ast.parse(text), package)) - {room_of(path.relative_to(package))}
    return dict(rooms)


def room_of(path: Path) -> str:
    """The folder below the package, or the module at its root."""
    return path.parts[0].removesuffix(".py")


def imported_rooms(tree: ast.Module, package: Path) -> Iterator[str]:
    """The rooms of a package that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == package.name:
            yield from (alias.name for alias in node.names if not alias.name.startswith("_"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package.name}."):
            yield node.module.split(".")[1]


def _count_definitions(room: RoomFigures, path: Path, tree: ast.Module, text: str) -> None:
    uses = Counter(re.findall(r"\b_[a-z]\w*", text))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            room.functions += 1
            private = node.name.startswith("_") and not node.name.startswith("__")
            if private and uses[node.name] == 2:  # its definition and one use
                room.private_once.append(f"{path}:{node.lineno} {node.name}")
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if re.match(r"_?[A-Z][a-z]", name) and len(node.args) >= MANY_ARGUMENTS:
                room.long_calls.append(f"{path}:{node.lineno} {name} ({len(node.args)})")


@app.command()
def main(
    room: str = typer.Option("", help="List what was counted in this room, place by place."),
    figure: str = typer.Option("", help="List the places of the figures whose names hold these words."),
    lint: bool = typer.Option(False, "--lint", help="Print figures above their limit; 1 if there are any."),
) -> None:
    """Print the figures of the package, room by room, and how plain its lines are."""
    plain = [
        *measured(Source.of_folder(PACKAGE), OF_PACKAGE),
        *measured(Source.of_sql(SQL), OF_SQL),
        *measured(Source.of_folder(TESTS), OF_TESTS),
    ]
    if lint:
        above = [each for each in plain if each.value > each.figure.limit]
        if above:
            print(table(above))
            print("Write it plainer (CONTRIBUTING.md); where: python -m benchmarks.structure --figure NAME")
        raise typer.Exit(bool(above))
    if figure:
        print(*(place for each in plain if figure in each.figure.name for place in each.places), sep="\n")
        return
    rooms = measure(PACKAGE)
    columns = ("lines", "comments", "functions", "private once", "long calls", "imports")
    print(f"{'room':20}" + "".join(f"{column:>14}" for column in columns))
    for name, of in sorted(rooms.items()):
        counts = (
            of.lines,
            of.comments,
            of.functions,
            len(of.private_once),
            len(of.long_calls),
            len(of.imports),
        )
        print(f"{name:20}" + "".join(f"{count:14}" for count in counts))
    functions = sum(of.functions for of in rooms.values())
    once = sum(len(of.private_once) for of in rooms.values())
    loose = sorted(path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py")
    print(f"lines {sum(of.lines for of in rooms.values())}")
    print(f"modules at the root {len(loose)}: {', '.join(loose)}")
    print(f"private functions used once {once} of {functions} ({once / functions:.1%})")
    print(f"arrows between rooms {sum(len(of.imports) for of in rooms.values())}")
    statements = {path: path.read_text(encoding="utf-8") for path in sorted(SQL.rglob("*.sql"))}
    folders = Counter(path.relative_to(SQL).parts[0] for path in statements if path.parent != SQL)
    lines = sum(text.count("\n") for text in statements.values())
    print(table(plain))
    print(f"lines of SQL {lines} in {len(statements)} files: {dict(folders)}")
    if room:
        print(*rooms[room].private_once, *rooms[room].long_calls, sep="\n")


if __name__ == "__main__":
    app()

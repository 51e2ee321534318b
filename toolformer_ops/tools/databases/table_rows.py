"""Read the rows whose cells a database proposes as calls, into the index of `cell_proposals.py`.

`[proposals]` of the tool file says which column names the rows of a table, and which of their cells are
proposed; nothing else is read. One query a table reads its rows with those that its foreign keys refer to. A
process reads them page by page (`RowPages`), within the bounds of all queries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from toolformer_ops.errors import RejectedInputError, ToolError
from toolformer_ops.tools.databases.cell_proposals import CellColumn, CellIndex
from toolformer_ops.tools.databases.database_file import ENGINES, DatabaseToolFile
from toolformer_ops.tools.databases.requests import DescribedDatabase, Table
from toolformer_ops.tools.databases.table_texts import column_name, table_name
from toolformer_ops.tools.files.tool_process import ToolProcess

MOST_ROWS = 1_000_000
"""Most rows that are read for a tool: an index of so many takes 0.25 GB and half a minute."""
ROWS_A_PAGE = 5_000
PAGE_SECONDS = 60.0
"""Longest time of a page: the first has to wait for a join of the tables."""


def read_cells(file: DatabaseToolFile, process: ToolProcess) -> CellIndex:
    """The index of the cells that the file proposes; the process of pages is opened and closed for it.

    Raises:
        ToolError: the tables have no such columns, or too many rows, or cannot be read.
        InfrastructureError: the database does not answer now.
    """
    try:
        described = DescribedDatabase.of(process.open())
        tables = {table.name: table for table in described.tables}
        index = CellIndex(file.proposals.common)
        rows = 0
        for key, values in file.proposals.cells.items():
            keyed = KeyedTable.of(file, tables, key, values)
            table = index.add_table(keyed.columns)
            for key_cell, *cells in rows_of_query(file, process, keyed.query):
                index.add(table, key_cell, cells)
                rows += 1
                if rows > MOST_ROWS:
                    raise ToolError(
                        f"tool {file.name}: expected at most {MOST_ROWS:,} rows in the tables of "
                        f"[proposals], found more when {keyed.table} was read. Name fewer tables there, or a "
                        "view with the rows that texts speak of."
                    )
        return index
    finally:
        process.close()


def rows_of_query(file: DatabaseToolFile, process: ToolProcess, query: str) -> Iterator[list[str | None]]:
    """The rows of a query that a process of pages reads.

    Raises:
        ToolError: they cannot be read.
    """
    try:
        while page := process.answer({"query": query}):
            yield from page
    except RejectedInputError as error:
        raise ToolError(
            f"tool {file.name}: expected rows of the tables of [proposals], found {error.reason} "
            f"({error.message or 'no more is known'}) by {query}. Leave this table or column out."
        ) from error


@dataclass(frozen=True)
class KeyedTable:
    """A table by the column that names its rows."""

    table: str
    query: str
    """Reads its keys, each with the cells of `columns`."""
    columns: Sequence[CellColumn]

    @classmethod
    def of(
        cls, file: DatabaseToolFile, tables: Mapping[str, Table], key: str, values: Sequence[str]
    ) -> "KeyedTable":
        """The table of a key of `[proposals]` with the columns that it lists.

        Raises:
            ToolError: there is no such table, column or foreign key.
        """
        name = next((name for name in tables if key.startswith(f"{name}.")), "")
        if not name or key.removeprefix(f"{name}.") not in tables[name].columns:
            spelled = [f"{table.name}.{column}" for table in tables.values() for column in table.columns]
            raise ToolError(
                f"tool {file.name}: expected in [proposals] a column such as {', '.join(spelled[:5])}, found "
                f"{key}. Write it as the database spells it."
            )
        keyed = _Keyed(ENGINES[file.database.engine], tables, tables[name], key.removeprefix(f"{name}."))
        cells: list[_Cell] = []
        for value in values:
            cell = keyed.own_cell(value) or keyed.far_cell(value)
            if cell is None:
                raise ToolError(
                    f"tool {file.name}: expected in [proposals] columns of {name} ("
                    f"{', '.join(tables[name].columns)}), or of a table that a foreign key of it refers to, "
                    f"such as supplier_id.city, found {value}."
                )
            cells.append(cell)
        selected = ", ".join([keyed.key, *(cell.selected for cell in cells)])
        joins = "".join(dict.fromkeys(cell.join for cell in cells))
        query = f"SELECT {selected} FROM {keyed.own}{joins}"  # noqa: S608 - no parameter can be a name
        return cls(name, query, [cell.column for cell in cells])


@dataclass(frozen=True)
class _Cell:
    """A column that is read for each key."""

    column: CellColumn
    selected: str
    """The column in the query that reads the table."""
    join: str = ""
    """The join that this query needs for it."""


@dataclass(frozen=True)
class _Keyed:
    """A table and its key column while the queries of its cells are written."""

    engine: str
    tables: Mapping[str, Table]
    table: Table
    key_column: str

    @property
    def own(self) -> str:
        """The table's name in a query."""
        return table_name(self.table.name, self.engine)

    @property
    def key(self) -> str:
        """The key column in a query of several tables."""
        return f"{self.own}.{column_name(self.key_column, self.engine)}"

    def own_cell(self, value: str) -> _Cell | None:
        """A column of the table itself; None if it has none of this name."""
        if value not in self.table.columns:
            return None
        column, key = column_name(value, self.engine), column_name(self.key_column, self.engine)
        query = f"SELECT {column} FROM {self.own} WHERE {key} = "  # noqa: S608 - no parameter can be a name
        return _Cell(CellColumn(value, query), f"{self.own}.{column}")

    def far_cell(self, value: str) -> _Cell | None:
        """A column of the table that a foreign key refers to, `supplier_id.city`; None if there is none."""
        foreign_key, _, far_column = value.partition(".")
        target, target_key = self.table.foreign_keys.get(foreign_key, ("", ""))
        if target in ("", self.table.name) or far_column not in self.tables[target].columns:
            return None
        far, column = table_name(target, self.engine), column_name(far_column, self.engine)
        far_key = column_name(target_key, self.engine)
        near_key = f"{self.own}.{column_name(foreign_key, self.engine)}"
        query = (
            f"SELECT {far}.{column} FROM {self.own} "  # noqa: S608 - no parameter can be a name
            f"JOIN {far} ON {far}.{far_key} = {near_key} WHERE {self.key} = "
        )
        # Two foreign keys may refer to one table, which the query that reads all cells then joins twice.
        alias = f"joined_{list(self.table.columns).index(foreign_key)}"
        join = f" LEFT JOIN {far} AS {alias} ON {alias}.{far_key} = {near_key}"
        name = f"{target.rpartition('.')[2]}_{far_column}"
        return _Cell(CellColumn(name, query), f"{alias}.{column}", join)

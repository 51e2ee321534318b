"""Write `docs/data_model.md` from the comments that schema and views put on their tables and columns.

    python -m toolformer_ops.storage.data_model > docs/data_model.md

The comments in `sql/` are the source; a test fails where the page is older than they are.
"""

import sys
from itertools import groupby

from sqlalchemy import Connection

from toolformer_ops.config import load_settings
from toolformer_ops.storage import database, queries

HEAD = """# The tables and views

Made from the comments in `sql/schema` and `sql/views` by
`python -m toolformer_ops.storage.data_model > docs/data_model.md`; a test fails when this page is older than
they are. Bold columns are the primary key. How the tables work together is in [database.md](database.md).
"""


def data_model(connection: Connection) -> str:
    """The page, as Markdown."""
    columns = {
        name: list(rows)
        for name, rows in groupby(database.fetch_all(connection, queries.schema.columns), key=lambda row: row.relation)
    }
    parts = [HEAD]
    kind = None
    for relation in database.fetch_all(connection, queries.schema.relations):
        if relation.is_view != kind:
            kind = relation.is_view
            parts.append("## Views\n" if kind else "## Tables\n")
        parts.append(f"### {relation.name}\n\n{relation.description}\n")
        lines = ["| column | type | meaning |", "|---|---|---|"]
        for column in columns[relation.name]:
            name = f"**{column.name}**" if column.is_key else column.name
            optional = "" if kind or column.is_required else ", or null"
            meaning = column.description.replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {name} | {column.type}{optional} | {meaning} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> None:
    """Print the page for the configured database."""
    with database.connect(load_settings()).connect() as connection:
        sys.stdout.write(data_model(connection))


if __name__ == "__main__":
    main()

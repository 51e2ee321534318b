"""The process that runs the queries of a tool: `python -I -m toolformer_ops.tools.databases.worker`.

It is asked an `Opening` first, then queries (`line_process.py`). Its memory and the files that it may write are
limited before it opens anything; it has no environment but the search path for programs.
"""

import resource
from dataclasses import asdict
from typing import Any

from toolformer_ops.errors import RejectedInputError, lacking_package
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.requests import AwayError, Opening, Queries, WrongDatabaseError
from toolformer_ops.tools.files.line_process import answer_lines

MOST_MEMORY_BYTES = 2**30
"""Address space of the process, in which Python and a driver take a tenth."""
MOST_FILE_BYTES = 2**20
"""Longest file that it may write: SQLite's index of a write-ahead log, and nothing else."""


def main() -> None:
    """Open the database, and answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    queries: Queries | None = None

    def answer(question: Any) -> dict[str, Any]:
        nonlocal queries
        try:
            if queries is None:
                queries = _opened(Opening.of(question))
                reply: dict[str, Any] = {"opened": asdict(queries.describe())}
            else:
                reply = {"rows": queries.answer(question)}
        except RejectedInputError as error:
            reply = {"reason": error.reason, "message": error.message}
        except MemoryError:
            reply = {"reason": reasons.MEMORY}
        except WrongDatabaseError as error:
            reply = {"wrong": str(error)}
        except AwayError as error:
            reply = {"away": str(error)}
        except ModuleNotFoundError as error:
            reply = {"wrong": str(lacking_package(error) or error)}
        except Exception as error:
            if queries is not None:
                raise  # what a query breaks ends with this process
            reply = {"wrong": f"expected its tables, found {type(error).__name__}: {error}"}
        return reply

    answer_lines(answer)


def _opened(opening: Opening) -> Queries:
    """The database; each engine's module is imported only where it is needed."""
    if opening.engine == "sqlite":
        from toolformer_ops.tools.databases.sqlite_queries import SqliteQueries

        return SqliteQueries(opening)
    from toolformer_ops.tools.databases.postgres_queries import PostgresQueries

    return PostgresQueries(opening)


if __name__ == "__main__":
    main()

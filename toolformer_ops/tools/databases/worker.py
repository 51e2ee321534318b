"""The process that runs the queries of a tool: `python -I -m toolformer_ops.tools.databases.worker`.

It reads one JSON object a line from stdin, first an `Opening`, then queries, and answers each with one on
stdout. Its memory and the files that it may write are limited before it opens anything; it has no
environment but the search path for programs. It ends with its parent, whose pipe closes, and an alarm ends it
within a query that goes on though its parent was killed.
"""

import json
import resource
import signal
import sys
from dataclasses import asdict
from typing import Any

from toolformer_ops.errors import RejectedInputError, lacking_package
from toolformer_ops.tools.databases import reasons
from toolformer_ops.tools.databases.requests import AwayError, Opening, Queries, WrongDatabaseError

MOST_MEMORY_BYTES = 2**30
"""Address space of the process, in which Python and a driver take a tenth."""
ALARM_SECONDS = 60.0
"""Given to a query beyond its limit, and to the start; the parent ends the process long before."""
MOST_FILE_BYTES = 2**20
"""Longest file that it may write: SQLite's index of a write-ahead log, and nothing else."""


def main() -> None:
    """Open the database, and answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    queries: Queries | None = None
    seconds = 0.0
    for line in sys.stdin:
        signal.setitimer(
            signal.ITIMER_REAL, seconds + ALARM_SECONDS
        )  # it ends the process, also within SQLite
        try:
            if queries is None:
                opening = Opening.of(json.loads(line))
                seconds = opening.seconds
                queries = _opened(opening)
                answer: dict[str, Any] = {"opened": asdict(queries.describe())}
            else:
                answer = {"rows": queries.answer(json.loads(line))}
        except RejectedInputError as error:
            answer = {"reason": error.reason, "message": error.message}
        except MemoryError:
            answer = {"reason": reasons.MEMORY}
        except WrongDatabaseError as error:
            answer = {"wrong": str(error)}
        except AwayError as error:
            answer = {"away": str(error)}
        except ModuleNotFoundError as error:
            answer = {"wrong": str(lacking_package(error) or error)}
        except Exception as error:
            if queries is not None:
                raise  # what a query breaks ends with this process
            answer = {"wrong": f"expected its tables, found {type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _opened(opening: Opening) -> Queries:
    """The database; each engine's module is imported only where it is needed."""
    if opening.engine == "sqlite":
        from toolformer_ops.tools.databases.sqlite_queries import SqliteQueries

        return SqliteQueries(opening)
    from toolformer_ops.tools.databases.postgres_queries import PostgresQueries

    return PostgresQueries(opening)


if __name__ == "__main__":
    main()

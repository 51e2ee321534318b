"""Keep what counts on rows of `call_results` apart from what deletes them.

A result serves all documents that ask the same, so that it may be deleted (`forget`, `retention`,
`retry-failed`, a repair) just when another run takes it for the answer. A lock of transactions keeps them
apart: executions and registrations of runs share it, a deletion has it alone and looks then who asks for the
results. Owns no table.
"""

from sqlalchemy import Connection

from toolformer_ops.storage.postgres import database, queries

_LOCK = "call results"


def keep_results(connection: Connection) -> None:
    """Wait until no result is being deleted; none is until the transaction ends."""
    database.execute(connection, queries.locks.shared_name, name=_LOCK)


def take_results(connection: Connection) -> None:
    """Wait until no transaction keeps the results; none does until this one ends."""
    database.execute(connection, queries.locks.name, name=_LOCK)

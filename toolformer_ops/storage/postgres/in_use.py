"""Keep what begins to use a text or a result apart from what deletes it.

Two locks of transactions do so. That of texts: ingestions and registrations of runs share it, `forget` has it
alone. That of results: a result serves all documents that ask the same, so that it may be deleted (`forget`,
`retention`, `retry-failed`, a repair) just when another run takes it for the answer; executions and
registrations share it, a deletion has it alone and looks then who asks for the results. Reads
`forgotten_documents`; owns no table.
"""

from sqlalchemy import Connection

from toolformer_ops.errors import InfrastructureError, UsageError
from toolformer_ops.storage.postgres import database, queries

_LOCK = "texts in use"


def keep_texts(connection: Connection) -> None:
    """Wait until no text is being marked or deleted; none is until the transaction ends.

    It is the first step of the transaction, so that those who wait hold nothing.
    """
    database.execute(connection, queries.locks.shared_name, name=_LOCK)


def take_texts(connection: Connection) -> None:
    """Wait until no transaction keeps the texts; none does until this one ends."""
    database.execute(connection, queries.locks.name, name=_LOCK)


def require_whole_texts(connection: Connection, run_id: str) -> None:
    """Refuse a run, registered in this transaction, if a text that it uses is being forgotten.

    The transaction keeps the texts (`keep_texts`).

    Raises:
        InfrastructureError: one of its texts is marked, and not yet deleted.
    """
    if not database.fetch_all(connection, queries.forgetting.any_pending):
        return
    database.execute(connection, queries.forgetting.texts_table)
    database.execute(connection, queries.forgetting.take_pending)
    database.execute(connection, queries.forgetting.add_variants)
    if database.fetch_all(connection, queries.forgetting.runs_of_texts, corpus_id="", run_id=run_id):
        raise InfrastructureError(
            f"run {run_id}: expected texts that stay, found some that are being forgotten. Start it again "
            "when `toolformer-ops forget` has ended; run without an option it continues what was interrupted."
        )


def require_unforgotten(connection: Connection, release_id: str) -> None:
    """Refuse to train on a release that holds a text which was forgotten.

    Raises:
        UsageError: it holds one.
    """
    forgotten = database.fetch_one(connection, queries.forgetting.of_release, release_id=release_id)
    if forgotten.texts:
        raise UsageError(
            f"--release: expected a release without forgotten texts, found {forgotten.texts} in {release_id}. "
            f"`toolformer-ops forget --release {release_id}` deletes it; the next run makes one without them."
        )


_RESULTS_LOCK = "call results"


def keep_results(connection: Connection) -> None:
    """Wait until no result is being deleted; none is until the transaction ends."""
    database.execute(connection, queries.locks.shared_name, name=_RESULTS_LOCK)


def take_results(connection: Connection) -> None:
    """Wait until no transaction keeps the results; none does until this one ends."""
    database.execute(connection, queries.locks.name, name=_RESULTS_LOCK)

"""What endpoints have answered, in the factory's database, for all processes of a run on any machine.

Owns the table `proposer_answers`; `stages/run_setup.py` writes `proposer_endpoints`. A text that is forgotten
takes its answers along (`storage/history/forgetting.py`).
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import Engine

from toolformer_ops.language_model.endpoint.answers import KeptReply, reply_of
from toolformer_ops.language_model.endpoint.client import Reply
from toolformer_ops.storage.postgres import database, queries


class DatabaseAnswers:
    """In the database; an `AnswerStore`."""

    def __init__(self, engine: Engine, proposer: str) -> None:
        """`proposer` is the identity of the endpoint, which a run has registered."""
        self._engine = engine
        self._proposer = proposer

    def stored(self, keys: Sequence[uuid.UUID]) -> Mapping[uuid.UUID, Reply]:
        """See `AnswerStore`."""
        rows = database.fetch_all(self._engine, queries.proposers.answers, request_keys=list(keys))
        return {row.request_key: reply_of(row.reply) for row in rows}

    def keep(self, replies: Sequence[KeptReply]) -> None:
        """See `AnswerStore`."""
        with database.transaction(self._engine) as connection:
            database.execute(
                connection,
                queries.proposers.keep_answers,
                proposer=self._proposer,
                request_keys=[kept.request_key for kept in replies],
                document_ids=[kept.document_id for kept in replies],
                replies=[json.dumps(asdict(kept.reply)) for kept in replies],
            )

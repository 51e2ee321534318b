"""Explain calls of a run from what is stored: their losses, token by token, without a model.

Reads `call_losses.token_log_probabilities` and `scored_tokens`. If the tokens are not stored, as a run of an
earlier version could choose, they are numbered from the call on.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from toolformer_ops.errors import UsageError
from toolformer_ops.storage.postgres import database, queries

MOST_CALLS = 50


def explain_stored(
    connection: Connection, run_id: str, call_id: str = "", document_id: str = "", at: int | None = None
) -> list[dict[str, Any]]:
    """The explanations of a run's calls of this id, or of a document at this offset, best first; at most 50.

    As `on_a_file/look/explanation.py` gives them, with where the call is, and the text around it. Without a run,
    those of the run that was finished last. `tokens` is empty if nothing was stored of them.

    Raises:
        UsageError: an id is not a UUID, neither is given, or there is no such run or call; the message says
        which.
    """
    if not call_id and not document_id:
        raise UsageError(
            "expected --call-id, or --document and --at, found neither. The view candidates has them."
        )
    ids: dict[str, uuid.UUID | None] = {}
    for name, value in (("call-id", call_id), ("document", document_id)):
        try:
            ids[name] = uuid.UUID(value) if value else None
        except ValueError as error:
            raise UsageError(f"--{name}: expected a UUID, found {value!r}.") from error
    rows = database.fetch_all(
        connection,
        queries.explaining.calls,
        run_id=run_id,
        call_id=ids["call-id"],
        document_id=ids["document"],
        at=at,
        at_most=MOST_CALLS,
    )
    if not rows:
        raise UsageError(
            f"expected such a call in {f'the run {run_id}' if run_id else 'the newest finished run'}, found "
            "none. The view candidates lists document_id, call_id and position_char; another run is named by "
            "--run. Rows that retention dropped are in the history: `toolformer-ops sql --history`."
        )
    explanations = []
    for row in rows:
        explanation = row._asdict()
        lines = explanation.pop("token_log_probabilities") or []
        texts = explanation.pop("scored_tokens") or [None] * len(lines and lines[0])
        explanation["tokens"] = explained_tokens(texts, explanation.pop("token_weights"), lines)
        explanations.append(explanation)
    return explanations


def explained_tokens(
    texts: Sequence[str | None], weights: Sequence[float], lines: Sequence[Sequence[float | None]]
) -> list[dict[str, Any]]:
    """The tokens of an explanation, with their weights in the losses and their log probabilities.

    `lines` has those without the call, without a result and with it.
    """
    columns = ("text", "weight", "log_p_without_call", "log_p_without_result", "log_p_with_result")
    all_weights = [*weights, *[0.0] * (len(texts) - len(weights))]
    return [dict(zip(columns, row, strict=True)) for row in zip(texts, all_weights, *lines[:3], strict=False)]

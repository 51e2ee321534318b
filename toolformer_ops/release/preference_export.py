"""A release as pairs for preference optimisation (DPO).

A pair has one opening, with a chosen and a rejected continuation. The shapes are those of TRL's preference
data sets with an explicit prompt (huggingface.co/docs/trl/dataset_formats), messages with `tools`; or
LLaMA-Factory's, one turn a side. A row also says which pair it is, its margin in nats (the column
that TRL's reward trainer reads), and the calls, by id.

A released call is chosen over a call that the run did not keep, at its place or else anywhere in its text, by
what each saves. In each text, going on without a call is also chosen over a call that makes what follows less
likely. Other calls of the text are left out of both continuations, as they were when the losses were
computed. A continuation ends with its call, since its result is not the model's own; one without a call ends
before the next released call of its text, or with the text.

A chosen continuation never goes past the place of another released call without calling there, from where the
two continuations differ: the pair would take back what finetuning on the release teaches. What both begin
with cancels out of the loss of DPO (Rafailov et al., 2023, equation 7).

Rejected calls are in Postgres alone, so the release must be one of this database (`tried_calls.py`).
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Row

from toolformer_ops.call_syntax import Call
from toolformer_ops.config import Settings
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.release.card import markdown
from toolformer_ops.release.conversations import (
    SHAREGPT_PAIRS_INFO,
    call_turn,
    drawn_end,
    function_call,
    sharegpt_opening,
    sharegpt_row,
    user_turn,
)
from toolformer_ops.release.export_files import FILE_NAME, INFO_NAME, require_place, write_json, write_rows
from toolformer_ops.release.format import ReleasedText
from toolformer_ops.release.opened_release import (
    OpenedRelease,
    left_out_warning,
    opened_release,
    run_of_release,
)
from toolformer_ops.release.tried_calls import TriedText, tried_texts
from toolformer_ops.storage.postgres import database

logger = logging.getLogger(__name__)

PairForm = Literal["messages", "sharegpt"]
PAIR_FORMS: dict[str, PairForm] = {"preference": "messages", "preference-sharegpt": "sharegpt"}
"""By the name that `export --format` takes."""
COMPARED = SAME_PLACE, SAME_TEXT, NO_CALL = "same_place", "same_text", "no_call"
"""What is compared: two calls at one place, two calls of one text, no call with a call."""


@dataclass(frozen=True)
class PreferenceExport:
    """What was written."""

    address: str
    """Address of the file: a path, or s3://."""
    pairs: dict[str, int]
    """How many, by what is compared."""
    sha256: str
    """Hash of the file's content."""
    written: bool
    """False if the same content was there already."""
    warnings: tuple[str, ...] = ()
    """What the chat template of the model would lose."""


@dataclass(frozen=True)
class Pair:
    """Two continuations of a text."""

    compared: str
    chosen: Row[Any] | None
    """A call as `exports.calls_of_texts` returns it; None: no call."""
    rejected: Row[Any]
    margin: float
    """What the chosen one saves beyond the rejected one, nats: at least so much, if the rejected call's
    losses are bounds."""


def pairs_of_text(released: Sequence[Row[Any]], rejected: Sequence[Row[Any]], seed: int) -> list[Pair]:
    """The pairs of one text: at most one for each released call, by place, then one without a call.

    A rejected call of another place than the chosen one's has no other released call from its place on up to
    the chosen one; a call that harms is not at the place of a released call. Of several rejected calls that
    would do, the one with the smallest hash of seed and ids is taken.
    """
    released_places = {call.position_char for call in released}

    def drawn(calls: Sequence[Row[Any]], against: str) -> Row[Any]:
        return min(
            calls, key=lambda call: hashlib.sha256(f"{seed} {against} {call.call_id}".encode()).digest()
        )

    pairs = []
    for kept in released:
        worse = []
        for call in rejected:
            passed = range(call.position_char, kept.position_char)
            if call.bound < kept.bound and released_places.isdisjoint(passed):
                worse.append(call)
        at_place = [call for call in worse if call.position_char == kept.position_char]
        if worse:
            call = drawn(at_place or worse, kept.call_id)
            pairs.append(Pair(SAME_PLACE if at_place else SAME_TEXT, kept, call, kept.bound - call.bound))
    harmful = []
    for call in rejected:
        harms = call.loss_with_result > call.loss_without_call
        if harms and call.position_char not in released_places:
            harmful.append(call)
    if harmful:
        call = drawn(harmful, NO_CALL)
        pairs.append(Pair(NO_CALL, None, call, call.loss_with_result - call.loss_without_call))
    return pairs


def row_of_pair(
    text: ReleasedText, pair: Pair, seed: int, tools: Sequence[dict[str, Any]], form: PairForm
) -> dict[str, Any] | None:
    """Return the row of a pair, or None if the form cannot take it.

    messages: the prompt ends at a word before both calls, drawn as in the chat export. sharegpt: it ends at
    the first of them, and a side is one turn, so that a call has no words before it: a pair whose calls are
    at two places has no row. A continuation without a call ends before the next released call.
    """
    if form == "sharegpt" and pair.compared == SAME_TEXT:
        return None
    # 1. Where prompt and continuations end.
    plain, released = text.all_calls()
    later_places = []
    for call in released:
        if call.position_char > pair.rejected.position_char:
            later_places.append(call.position_char)
    end = min(later_places, default=len(plain))
    first = min(call.position_char for call in (pair.chosen, pair.rejected) if call)
    cut = drawn_end(plain[:first], text.document_id, seed) if form == "messages" else first

    # 2. The two continuations.
    def continuation(call: Row[Any] | None) -> Any:
        written = plain[cut : call.position_char if call else end]
        if form == "messages":
            if call is None:
                return [{"role": "assistant", "content": written}]
            return [call_turn(written, Call(call.tool, call.call_input), "call00001")]
        if call is None:
            return {"from": "gpt", "value": written}
        return function_call(Call(call.tool, call.call_input))

    # 3. The row.
    row: dict[str, Any] = {
        "chosen": continuation(pair.chosen),
        "rejected": continuation(pair.rejected),
        "compared": pair.compared,
        "margin": pair.margin,
        "document_id": str(text.document_id),
        "chosen_call_id": pair.chosen.call_id if pair.chosen else "",
        "rejected_call_id": pair.rejected.call_id,
        # Numbers in every row: `datasets` types a column by the first 10 MB, and refuses numbers if these
        # hold nulls alone.
        "placebos": pair.chosen.placebos if pair.chosen else 0,
        "placebo_margin": (pair.chosen.information or 0.0) if pair.chosen else 0.0,
    }
    if form == "sharegpt":
        return {**sharegpt_row([sharegpt_opening(plain[:cut])], list(tools)), **row}
    return {"prompt": [user_turn(plain[:cut])], **row, "tools": list(tools)}


def export_preferences(
    settings: Settings,
    release: str,
    out: str,
    seed: int,
    model: str = "",
    *,
    form: PairForm = "messages",
    takes_lossy_template: bool = False,
) -> PreferenceExport:
    """Write the pairs of the release at `release` (s3://) to `out`, and their card.

    `out` is a .jsonl file or a folder, local or s3://. The chat template of `model`, or else of the setting
    default_model, is tried first on rows of messages. If it drops calls, both sides of a pair are nearly the
    same to a trainer, so the export is refused unless it `takes_lossy_template`.

    Raises:
        UsageError: the chat template loses something.
        NoResultError: there is no pair.
        UsageError, ModelError, ToolError, ConfigurationError, ObjectStoreError: as `export_chat`.
    """
    require_place(out)
    counts: Counter[str] = Counter()
    with (
        opened_release(settings, release, model, tries_template=form == "messages") as opened,
        database.transaction(database.connect(settings)) as connection,
    ):
        if opened.warnings and not takes_lossy_template:
            raise UsageError(
                "expected a chat template that renders calls, since pairs differ in them. "
                f"{' '.join(opened.warnings)} Add --lossy-template if you set another template before the "
                "training."
            )
        release_id, run_id = run_of_release(connection, release)
        tried_calls = tried_texts(connection, opened.folder, run_id)

        def card() -> str:
            pairs = sum(counts[compared] for compared in COMPARED)
            if not pairs:
                raise NoResultError(
                    f"expected at least one pair, found none: {counts['texts']} texts with "
                    f"{counts['released']} released calls, and {counts['rejected']} calls whose loss with "
                    f"their result is known and that the run {run_id} did not keep; {counts['without_row']} "
                    "pairs cannot be written in this form. Nothing was written. With prune_below 0 a run "
                    "computes the losses of every call."
                )
            template = Path(__file__).with_name("preference_card.md.jinja")
            return markdown(
                template,
                release_id=release_id,
                run_id=run_id,
                seed=seed,
                form=form,
                pairs=pairs,
                counts=counts,
            )

        address, sha256, written = write_rows(
            settings, out, _rows(tried_calls, opened, seed, form, counts), card
        )
        if form == "sharegpt" and not out.endswith(".jsonl"):
            write_json(settings, {"train": {"file_name": FILE_NAME, **SHAREGPT_PAIRS_INFO}}, out, INFO_NAME)
    pairs = {compared: counts[compared] for compared in COMPARED}
    warnings = opened.warnings
    if counts["control_tokens"]:
        warnings = (*warnings, left_out_warning(counts["control_tokens"]))
        logger.warning("%s", warnings[-1])
    logger.info("%s pairs %s: %s", "wrote" if written else "found the same", pairs, address)
    return PreferenceExport(address=address, pairs=pairs, sha256=sha256, written=written, warnings=warnings)


def _rows(
    tried_calls: Iterable[TriedText],
    opened: OpenedRelease,
    seed: int,
    form: PairForm,
    counts: "Counter[str]",
) -> Iterator[dict[str, Any]]:
    """The rows of the texts' pairs; counts texts, calls and pairs, and what has no row."""
    for tried in tried_calls:
        text = tried.text
        if opened.control_tokens.search(text.text) is not None:
            counts["control_tokens"] += 1
            continue
        pairs = pairs_of_text(tried.released, tried.rejected, seed)
        counts.update(texts=1, released=len(text.calls), rejected=len(tried.rejected))
        counts["without_pair"] += len(text.calls) - sum(pair.chosen is not None for pair in pairs)
        for pair in pairs:
            row = row_of_pair(text, pair, seed, opened.tools, form)
            counts[pair.compared if row else "without_row"] += 1
            if row:
                yield row

"""Calls as a person reads them: in their text, with how many nats each saves, and why one is not kept."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.text import Text

from toolformer_ops.call_syntax import call_with_result, parse_call
from toolformer_ops.runs.reasons import title
from toolformer_ops.shown_text import beside_threshold, visible

Row = Mapping[str, Any]
"""A call as `annotate` prints it."""


class FailedCall(NamedTuple):
    """A call that gets no result."""

    call: str
    reason: str
    message: str
    """What the tool said; empty where the reason says all."""

    @property
    def why(self) -> str:
        """In words, as a person reads it."""
        return why_no_result(self.reason, self.message)


def why_no_result(reason: str, message: str) -> str:
    """Such as `the database does not understand the query: no such column: prise`."""
    return f"{title(reason)}: {visible(message)}" if message else title(reason)


def written_call(row: Row) -> str:
    """The call with its result, as a text would hold it."""
    return call_with_result(parse_call(row["call"]), str(row["result"]))


def call_in_its_text(row: Row) -> Text:
    """`...a total of [Calculator(2 + 3) -> 5] 5 animals.`: the call, in colour, in the text around it, on one line."""
    before, after = visible(row["before"]), visible(row["after"])
    cut_before = "..." if row["position_char"] > len(row["before"]) else ""
    space = " " if before and not before[-1:].isspace() else ""
    line = Text(f"{cut_before}{before}{space}".replace("\n", " "))
    line.append(visible(written_call(row)), style="bold green" if row["kept"] else "yellow")
    line.append(f"{'' if after[:1].isspace() else ' '}{after}".replace("\n", " "))
    return line


def saved_in_words(row: Row) -> str:
    """The nats that a call saves: `1.21`, `at most 0.30` if only a bound is known, or `unknown`."""
    if row["loss_reduction"] is not None:
        return beside_threshold(row["loss_reduction"], row["keep_threshold"], digits=2)
    return "unknown" if row["reduction_bound"] is None else f"at most {row['reduction_bound']:.2f}"


def verdict(row: Row) -> str:
    """What a call saves and whether it is kept, and why not: `saves 1.21 nats: kept, 0.5 are needed`."""
    if row.get("result") is None:
        return f"not kept, {why_no_result(row['not_kept'], row.get('message', ''))}"
    saves = f"saves {saved_in_words(row)} nats"
    needed = f"{row['keep_threshold']:g} are needed"
    if row["kept"]:
        unteachable = (
            f", but in no release, since its {title('input_only_after')}" if row["input_only_after"] else ""
        )
        return f"{saves}: kept, {needed}{unteachable}"
    if row["not_kept"] in ("below_threshold", "pruned_below"):
        return f"{saves}: not kept, {needed}"
    return f"{saves}: not kept, {title(row['not_kept'])}"

"""Calls as a person reads them: in their text, with what each gains, and why one is not kept."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.text import Text

from toolformer_ops.annotation.scoring import scored_call_of
from toolformer_ops.call_syntax import call_with_result, parse_call
from toolformer_ops.runs.reasons import title
from toolformer_ops.shown_text import at_most_gained, gained, needed, visible

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
    """The reason in words, with the tool's message."""
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


def most_gain(row: Row) -> float:
    """The gain of a call, or a number that it does not exceed; minus infinity if there is none."""
    bound = scored_call_of(row).gain_bound if row["gain"] is None else row["gain"]
    return float("-inf") if bound is None else float(bound)


def gain_in_words(row: Row) -> str:
    """What a call gains (`shown_text.gained`), or the bound that is known."""
    scored = scored_call_of(row)
    if scored.gain_bound is None:
        return "unknown"
    if scored.reason is not None:
        by_probability = scored.probability_without is not None
        return at_most_gained(scored.gain_bound, by_probability, row["keep_threshold"])
    gain = scored.gain_bound if row.get("gain") is None else row["gain"]
    return gained(gain, scored.probability_with, row["keep_threshold"])


def verdict(row: Row) -> str:
    """What a call gains and whether it is kept, and why not: `saves 1.21 nats: kept, 0.5 are needed`."""
    if row.get("result") is None:
        return f"not kept, {why_no_result(row['not_kept'], row.get('message', ''))}"
    gain = gain_in_words(row)
    needs = needed(row["keep_threshold"], row.get("probability_without") is not None)
    if row["kept"]:
        unteachable = (
            f", but in no release, since its {title('input_only_after')}" if row["input_only_after"] else ""
        )
        return f"{gain}: kept, {needs}{unteachable}"
    if row["not_kept"] in ("below_threshold", "pruned_below"):
        return f"{gain}: not kept, {needs}"
    return f"{gain}: not kept, {title(row['not_kept'])}"

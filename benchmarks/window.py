"""What a context window costs and keeps: windows of 16, 32, 64, 128 tokens and the whole text, with real and with shuffled results.

A sum in prose follows 110 tokens of other sentences, and the right call has the right place: before its result. Shuffled
results are those of the next sum: what a call keeps then, it keeps for no good reason. A call counts as kept where it saves 0.5
nats over all terms of L-, the loss without a call under the full context among them; without that guard is reported next to it.
"""

import dataclasses
import gzip
import json
import logging
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolformer_ops.call_syntax import Call
from toolformer_ops.demo.corpus import own_documents
from toolformer_ops.errors import NoValueError
from toolformer_ops.language_model import LanguageModel
from toolformer_ops.records import CallLosses, PlacedCall
from toolformer_ops.tools.calculator import evaluate, write_number

logger = logging.getLogger(__name__)

WINDOWS = (16, 32, 64, 128, None)
"""Tokens before a position; None is the whole text."""
TOKENS_BEFORE = 110
THRESHOLD = 0.5
"""Nats."""
GSM8K = Path("../shared/data/gsm8k/train.jsonl.gz")
"""Worded sums, in the folder next to the checkout."""
_ANNOTATION = re.compile(r"<<([^=<>]+)=[^<>]*>>")


@dataclass(frozen=True)
class PlacedSum:
    """A text with one call at its place."""

    text: str
    token: int
    expression: str
    result: str


@dataclass(frozen=True)
class WindowRow:
    """One window over one set of sums."""

    texts: str
    window: int | None
    calls: int
    kept: int
    kept_shuffled: int
    kept_without_guard: int
    kept_without_guard_shuffled: int
    cpu_seconds_a_call: float


@dataclass(frozen=True)
class LengthRow:
    """Scoring time with a window of 16 in texts of one length."""

    tokens: int
    calls: int
    cpu_seconds_a_call: float
    """All that `score_calls` does: the call's passes and its share of the text's one pass with full context."""
    cpu_seconds_a_call_without_guard: float
    """Without that pass."""


def measure_windows(model: LanguageModel, sums: int) -> list[dict[str, Any]]:
    """Time and yield of each window for at most `sums` sums of each kind."""
    kinds = {"sums in prose, alone": sums_in_prose(model, 0), "sums in prose, behind other text": sums_in_prose(model)}
    if GSM8K.is_file():
        kinds["worked sums (gsm8k)"] = worked_sums(model, sums)
    rows: list[dict[str, Any]] = []
    for name, found in kinds.items():
        for window in WINDOWS:
            rows.append(dataclasses.asdict(_window_row(model, name, found[:sums], window)))
            logger.info("window: %s", rows[-1])
    return rows


def measure_lengths(model: LanguageModel, runs: int, lengths: Sequence[int] = (200, 1000)) -> list[dict[str, Any]]:
    """Scoring time a call near the end of texts of each length, with a window of 16; lengths take turns."""
    sums = own_documents("sums_in_prose")
    long = " ".join(document.text for document in sums)
    seconds: dict[int, list[tuple[float, float]]] = {length: [] for length in lengths}
    for _ in range(runs):
        for length in lengths:
            text = long[: model.tokenize(long).starts[length]]
            places = [token for token in model.tokenize(text).word_starts if length - 60 <= token < length - 5][:20]
            calls = [PlacedCall(token, Call("Calculator", f"640 - {token}"), str(640 - token)) for token in places]
            started = time.process_time()
            model.score_texts([(text, calls)], context_tokens=16)
            whole = time.process_time() - started
            started = time.process_time()
            model.losses_without_call([(text, places)])
            guard = time.process_time() - started
            seconds[length].append((whole / len(calls), (whole - guard) / len(calls)))
    return [
        dataclasses.asdict(
            LengthRow(
                length,
                20,
                statistics.median(one for one, _ in measured),
                statistics.median(other for _, other in measured),
            )
        )
        for length, measured in seconds.items()
    ]


def sums_in_prose(model: LanguageModel, tokens_before: int = TOKENS_BEFORE) -> list[PlacedSum]:
    """The demo's sums, each behind about `tokens_before` tokens of the other documents' sentences."""
    documents = own_documents("sums_in_prose")
    records = _sum_records()
    others = [document.text for document in own_documents("dated_posts")]
    found: list[PlacedSum] = []
    for number, (document, (expression, result)) in enumerate(zip(documents, records, strict=True)):
        before = ""
        for step in range(len(others)):
            if len(model.tokenize(before)) >= tokens_before:
                break
            before += others[(number + step) % len(others)] + " "
        at = document.text.rindex(result)
        found += _placed(model, before + document.text, len(before) + at, expression, result)
    return found


def worked_sums(model: LanguageModel, count: int) -> list[PlacedSum]:
    """Questions with their worked answers; the call comes before the last annotated result of each."""
    found: list[PlacedSum] = []
    with gzip.open(GSM8K, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            answer = record["answer"].partition("\n####")[0]
            last = list(_ANNOTATION.finditer(answer))[-1:]
            if not last:
                continue
            before = _ANNOTATION.sub("", answer[: last[0].start()])
            after = _ANNOTATION.sub("", answer[last[0].end() :])
            text = f"{record['question']} {before}{after}"
            try:
                result = write_number(evaluate(last[0].group(1)))
            except NoValueError:
                continue
            found += _placed(model, text, len(record["question"]) + 1 + len(before), last[0].group(1), result)
            if len(found) >= count:
                break
    return found


def _placed(model: LanguageModel, text: str, at: int, expression: str, result: str) -> list[PlacedSum]:
    """One sum, or none where no token starts at the result."""
    starts = model.tokenize(text).starts
    for wanted in (at - 1, at):
        if wanted in starts[1:] and not text[wanted:at].strip():
            return [PlacedSum(text, starts.index(wanted, 1), expression, result)]
    return []


def _sum_records() -> list[tuple[str, str]]:
    import importlib.resources

    file = importlib.resources.files("toolformer_ops.demo").joinpath("texts", "sums_in_prose.jsonl")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(record["sum"], record["result"]) for record in records]


def _window_row(model: LanguageModel, name: str, sums: Sequence[PlacedSum], window: int | None) -> WindowRow:
    shuffled = [item.result for item in (*sums[1:], *sums[:1])]
    started = time.process_time()
    real = [_score(model, item, item.result, window) for item in sums]
    seconds = (time.process_time() - started) / len(sums)
    other = [_score(model, item, result, window) for item, result in zip(sums, shuffled, strict=True)]
    return WindowRow(
        texts=name,
        window=window,
        calls=len(sums),
        kept=_kept(real),
        kept_shuffled=_kept(other),
        kept_without_guard=_kept([_unguarded(losses) for losses in real]),
        kept_without_guard_shuffled=_kept([_unguarded(losses) for losses in other]),
        cpu_seconds_a_call=seconds,
    )


def _score(model: LanguageModel, item: PlacedSum, result: str, window: int | None) -> CallLosses:
    placed = PlacedCall(item.token, Call("Calculator", item.expression), result)
    [[losses]] = model.score_texts([(item.text, [placed])], float32_from=THRESHOLD, context_tokens=window)
    return losses


def _unguarded(losses: CallLosses) -> CallLosses:
    return dataclasses.replace(losses, without_call_full_context=None)


def _kept(losses: Sequence[CallLosses]) -> int:
    return sum(one.reduction_bound >= THRESHOLD for one in losses)

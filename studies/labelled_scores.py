"""Log probabilities of labelled calls, stored as raw answers: what keep rules are compared on without a model.

`answers/labelled-NAME.jsonl.bz2` has a line a call of a set of `labelled_calls.SETS`:

    text      digest of the text's name; its first bit decides on the half, `choose` or `sealed`
    place     offset in the text
    call, result, label
    log_p     by condition the natural logarithms of the up to ten tokens behind the call, in hundredths of a nat: no call
              (`without_call`), the call without its result, with it, and with a placebo, another text's result. Of a right
              call also with a second placebo (`with_other_placebo`), against which the first is a result by chance.

A text itself is not stored. Texts of a half are scored in an order that follows from each alone, and those of several sets
in turn, so that what is there when the time is over is a sample of each set.
"""

import hashlib
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from studies.answers import DIGITS, Line, write_lines
from studies.calls import ten_tokens
from studies.labelled_calls import RIGHT, SETS, LabelledCall, LabelledText, in_hash_order
from toolformer_ops.records import PlacedCall

if TYPE_CHECKING:
    from toolformer_ops.language_model.model import LanguageModel

logger = logging.getLogger(__name__)

Half = Literal["choose", "sealed"]
HALVES: tuple[Half, Half] = ("choose", "sealed")
LABELLED = "labelled-{name}.jsonl.bz2"
TEXTS_TOGETHER = 16
MOST_TEXTS = 160
"""Right calls of a half of a set."""
PLACEBOS = 2


def digest_of(name: str) -> str:
    """What stands for a text in raw answers."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def half_of(digest: str) -> Half:
    """The half in which a text is."""
    return "sealed" if int(digest[0], 16) % 2 else "choose"


def score_sets(
    model: "LanguageModel",
    files: Mapping[str, Path],
    folder: Path,
    *,
    half: Half,
    at_most: int = MOST_TEXTS,
) -> None:
    """Score a half of sets of labelled calls, some texts of each in turn, into `NAME.jsonl` of a folder.

    What the folder has is not scored again. `at_most` texts of a half of a set are scored.
    """
    # 1. The texts of each set, and the results of all of them, of which placebos are drawn.
    waiting: dict[str, list[LabelledText]] = {}
    results: dict[str, list[str]] = {}
    for name, file in files.items():
        texts = in_hash_order(SETS[name](file))
        results[name] = sorted({text.right.result for text in texts})
        of_half = [text for text in texts if half_of(digest_of(text.name)) == half][:at_most]
        done = _done(folder / f"{name}.jsonl")
        waiting[name] = [text for text in of_half if (digest_of(text.name), str(text.right.call)) not in done]
    # 2. Some of each in turn.
    while any(waiting.values()):
        for name, texts in waiting.items():
            group, left = texts[:TEXTS_TOGETHER], texts[TEXTS_TOGETHER:]
            waiting[name] = left
            if not group:
                continue
            lines = itertools.chain.from_iterable(score_texts(model, group, results[name]))
            with (folder / f"{name}.jsonl").open("a", encoding="utf-8") as out:
                # Whole groups alone, so that a killed process leaves no half text behind.
                out.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
            logger.info("%s: %d texts are left", name, len(left))


def score_texts(
    model: "LanguageModel", texts: Sequence[LabelledText], results: Sequence[str]
) -> list[list[Line]]:
    """By text the lines of its calls; placebos are drawn from the results.

    A call at a place inside a token is left out.
    """
    # 1. Each call with its own result, and behind it with its placebos.
    placeable: list[list[tuple[LabelledCall, list[PlacedCall]]]] = []
    for text in texts:
        starts = model.tokenize(text.text).starts
        of_text = []
        for call in text.calls:
            if call.place in starts:
                shown = (call.result, *placebos_of(text, call, results))
                token = starts.index(call.place)
                of_text.append((call, [PlacedCall(token, call.call, result) for result in shown]))
        placeable.append(of_text)
    # 2. All at once.
    placed = [
        (text.text, [item for _, items in of_text for item in items])
        for text, of_text in zip(texts, placeable, strict=True)
    ]
    scored = ten_tokens(model, placed)
    # 3. A line a call.
    by_text: list[list[Line]] = []
    for text, of_text, log_p in zip(texts, placeable, scored, strict=True):
        remaining = iter(log_p)
        by_text.append([_line(text, call, [next(remaining) for _ in items]) for call, items in of_text])
    return by_text


def placebos_of(text: LabelledText, call: LabelledCall, results: Sequence[str]) -> list[str]:
    """Other results for a call, by a draw that follows from its text and the call, not from its place.

    A right call has two, wherever it stands, and any other call one.
    """
    key = f"{text.text}|{call.call}|{call.result}"
    others = [result for result in results if result != call.result]
    order = sorted(others, key=lambda other: hashlib.sha256(f"{key}|{other}".encode()).digest())
    return order[: PLACEBOS if call.call == text.right.call else 1]


def _line(text: LabelledText, call: LabelledCall, log_p: Sequence[Mapping[str, list[float]]]) -> Line:
    own, placebo, *others = log_p
    conditions = {**own, "with_placebo": placebo["with_result"]}
    if call.label == RIGHT:
        conditions["with_other_placebo"] = others[0]["with_result"]
    return {
        "text": digest_of(text.name),
        "place": call.place,
        "call": str(call.call),
        "result": call.result,
        "label": call.label,
        "log_p": {name: [round(value, DIGITS) for value in values] for name, values in conditions.items()},
    }


def _done(file: Path) -> set[tuple[str, str]]:
    """The texts that a file has, by digest and right call."""
    if not file.exists():
        return set()
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(line["text"], line["call"]) for line in lines if line["label"] == RIGHT}


def pack(folder: Path, answers: Path) -> list[Path]:
    """Write the sets of a folder as raw answers."""
    answers.mkdir(parents=True, exist_ok=True)
    packed = []
    for name in SETS:
        file = folder / f"{name}.jsonl"
        if file.exists():
            lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
            write_lines(answers / LABELLED.format(name=name), lines)
            packed.append(answers / LABELLED.format(name=name))
    return packed

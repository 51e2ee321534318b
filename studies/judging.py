"""Calls that arms chose, before a reader who does not know which arm chose them.

    sheets      the calls of the arms in an order by chance, each with the words around it; twice, in two orders
    verdicts    the reader writes a file of `{"id": ..., "verdict": ...}` beside each sheet
    judged      calls, arms and both verdicts together, as they stand in `answers/NAME-judged.jsonl`

The words are those of the product's page for reviews: a call is `useful` if its result says what the text says
next, or what its writer had to know for it, at a place where the writer would look it up; `useless` if the result
is right and the text does not need it there; `wrong` if the result is wrong, or answers no sensible question;
`skip` if the reader cannot tell.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from studies.arms import chosen_call
from studies.calls import Record, stored_records
from studies.plan import PLAN, StudyPlan
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.run_page.judgements import VERDICTS
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.registry import get_tool

JUDGED_ARMS = ("paper", "tau_0.25", "foretold", "surprising_fact", "any_call")
CALLS_AN_ARM = 60
READINGS = (1, 2)
SHOWN_CHARACTERS = 200
"""Of the text on each side of a call."""


@dataclass(frozen=True)
class ChosenCall:
    """A call that at least one arm chose."""

    id: str
    """A hash of the text, the place, the call and its result."""
    seed: int
    call: str
    result: str
    before: str
    """The end of the text before the call."""
    after: str
    """The beginning of the text behind it."""
    arms: tuple[str, ...] = ()

    @classmethod
    def of(cls, seed: int, record: Record, call: Mapping[str, Any]) -> "ChosenCall":
        """A call of a seed's record."""
        text, place = record["text"], call["position_char"]
        name = f"{text}|{place}|{call['call']}|{call['result']}"
        return cls(
            id=hashlib.sha256(name.encode()).hexdigest()[:12],
            seed=seed,
            call=call["call"],
            result=call["result"],
            before=text[max(0, place - SHOWN_CHARACTERS) : place],
            after=text[place : place + SHOWN_CHARACTERS],
        )


def chosen_calls(
    folder: Path, arms: Sequence[str] = JUDGED_ARMS, at_most: int = CALLS_AN_ARM
) -> list[ChosenCall]:
    """Of each arm at most so many of the calls that it chose in all annotated seeds of a study's folder.

    Which ones follows from the calls alone. A call that several arms chose is one.

    Raises:
        NoResultError: no seed is annotated.
    """
    arms_of: dict[str, list[str]] = {}
    calls: dict[str, ChosenCall] = {}
    for arm in arms:
        of_arm = {call.id: call for call in _calls_of_arm(folder, arm)}
        for name in sorted(of_arm)[:at_most]:
            calls.setdefault(name, of_arm[name])
            arms_of.setdefault(name, []).append(arm)
    if not calls:
        raise NoResultError(
            f"{folder}: expected annotated seeds with calls, found none. `python -m studies run` makes them."
        )
    return [ChosenCall(**{**asdict(calls[name]), "arms": tuple(arms_of[name])}) for name in sorted(calls)]


def _calls_of_arm(folder: Path, arm: str) -> Iterator[ChosenCall]:
    for seed in sorted(folder.glob("seed-*")):
        plan = StudyPlan.read(seed / PLAN)
        for record in stored_records(seed):
            call = chosen_call(arm, record, get_tool(plan.tool), plan.seed)
            if call is not None:
                yield ChosenCall.of(plan.seed, record, call)


def write_sheets(folder: Path, calls: Sequence[ChosenCall]) -> list[Path]:
    """Write a sheet for each reading: the calls in their texts, without their arms, seeds and losses."""
    sheets = []
    for reading in READINGS:
        lines = []
        for call in sorted(calls, key=lambda call: hashlib.sha256(f"{reading}|{call.id}".encode()).digest()):
            text = f"{call.before} [{call.call} -> {call.result}]{call.after}"
            lines.append(json.dumps({"id": call.id, "text": text}, ensure_ascii=False) + "\n")
        sheet = folder / f"sheet-{reading}.jsonl"
        replace_file(sheet, "".join(lines))
        sheets.append(sheet)
    return sheets


def read_verdicts(folder: Path, calls: Sequence[ChosenCall]) -> list[dict[str, str]]:
    """By reading, the verdict of each call by its id, from `verdicts-1.jsonl` and `verdicts-2.jsonl`.

    Raises:
        UsageError: a file or a verdict is not there, is unknown, or is of a call that no sheet has.
    """
    readings = []
    for reading in READINGS:
        file = folder / f"verdicts-{reading}.jsonl"
        if not file.is_file():
            raise UsageError(
                f"expected the verdicts of reading {reading} at {file}, found no file. "
                f'Write {{"id": ..., "verdict": ...}} for each line of sheet-{reading}.jsonl.'
            )
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        verdicts = {line["id"]: line["verdict"] for line in lines}
        if unknown := set(verdicts.values()) - set(VERDICTS):
            raise UsageError(f"{file}: expected {', '.join(VERDICTS)}, found {', '.join(sorted(unknown))}.")
        if differing := set(verdicts) ^ {call.id for call in calls}:
            raise UsageError(
                f"{file}: expected one verdict for each call of the sheet, found other calls or none for "
                f"{', '.join(sorted(differing)[:5])}."
            )
        readings.append(verdicts)
    return readings


def write_judged(file: Path, calls: Sequence[ChosenCall], readings: Sequence[Mapping[str, str]]) -> None:
    """Write the calls with their arms and the verdict of each reading, a line a call."""
    lines = []
    for call in calls:
        verdicts = [verdict_of[call.id] for verdict_of in readings]
        lines.append(json.dumps({**asdict(call), "verdicts": verdicts}, ensure_ascii=False) + "\n")
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, "".join(lines))


@dataclass(frozen=True)
class JudgedCalls:
    """The judged calls of a study."""

    lines: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, file: Path) -> "JudgedCalls":
        """Those that `write_judged` wrote."""
        return cls([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()])

    @property
    def arms(self) -> list[str]:
        """Those that chose a call, in the order of `JUDGED_ARMS`."""
        return [arm for arm in JUDGED_ARMS if self.verdicts(arm, 1)]

    def verdicts(self, arm: str, reading: int) -> list[str]:
        """What one reading says of the calls of an arm."""
        return [line["verdicts"][reading - 1] for line in self.lines if arm in line["arms"]]

    def pairs(self) -> list[tuple[str, str]]:
        """Both verdicts on each call that no reading skipped."""
        both = [tuple(line["verdicts"]) for line in self.lines]
        return [(first, second) for first, second in both if "skip" not in (first, second)]

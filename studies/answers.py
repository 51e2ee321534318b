"""The raw answers of a study, by seed: what its tables are computed from, and nothing more.

`NAME.jsonl.bz2` has lines of four kinds, by their `line`:

    plan      the numbers of the study, the model, and which seeds it has
    seed      of a seed: texts and steps by arm, texts that each arm could have had and that it has with the call of the
              first arm, seconds of the annotation (null if its calls came out of raw answers)
    arm       of a seed and arm: the perplexity of plain text, tokens that the training read, seconds
    answer    of a seed, arm and sentence: what was written, whether it is right, losses while reading

`NAME-calls.jsonl.bz2` has a line for each call that could be released, with the log probabilities of the ten tokens
behind it: what the rules of `arms.RULES` are tried on. The same answers are the same bytes.
"""

import bz2
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies.arms import ScoredCall, foretells, is_right, releasable
from studies.calls import CALLS, stored_records
from studies.following import result_follows
from studies.labelled_texts import LabelledTexts
from studies.measuring import BEFORE
from studies.plan import PLAN, SUMMARY, StudyPlan
from toolformer_ops.errors import NoResultError, UsageError
from toolformer_ops.tools.base import Tool
from toolformer_ops.tools.registry import get_tool

Line = dict[str, Any]

DIGITS = 2
"""Of a log probability, behind the point: hundredths of a nat, which change shares of a rule by less than 0.01."""


def gather(folder: Path, out: Path) -> tuple[Path, Path | None]:
    """Write the answers of a study's folder, as far as its seeds are, into the folder `out`.

    Returns the file of the answers and that of the calls; None if the calls are labelled, and so in raw answers already.

    Raises:
        NoResultError: no seed has an answer yet.
        UsageError: seeds have plans that differ in more than seed and arms.
    """
    seeds = sorted(folder.glob("seed-*"), key=lambda path: int(path.name.removeprefix("seed-")))
    seeds = [seed for seed in seeds if (seed / CALLS).exists()]
    if not seeds:
        raise NoResultError(
            f"{folder}: expected folders of seeds with answers, found none. Run the study first."
        )
    plans = [StudyPlan.read(seed / PLAN) for seed in seeds]
    lines: list[Line] = [_plan_line(folder, plans)]
    for plan, seed in zip(plans, seeds, strict=True):
        lines += _seed_lines(plan, seed)
    out.mkdir(parents=True, exist_ok=True)
    study = plans[0].study
    answers_file, calls_file = out / f"{study}.jsonl.bz2", out / f"{study}-calls.jsonl.bz2"
    write_lines(answers_file, lines)
    if isinstance(plans[0].source, LabelledTexts):
        return answers_file, None
    calls: list[Line] = []
    for plan, seed in zip(plans, seeds, strict=True):
        calls += _call_lines(plan, seed)
    write_lines(calls_file, calls)
    return answers_file, calls_file


def _plan_line(folder: Path, plans: Sequence[StudyPlan]) -> Line:
    """The numbers that all seeds have in common, their seeds, and every arm that one of them has.

    Raises:
        UsageError: they differ in another number.
    """
    first = asdict(plans[0])
    arms: dict[str, None] = {}
    for plan in plans:
        arms.update(dict.fromkeys(plan.arms))
        differing = [name for name, value in asdict(plan).items() if value != first[name]]
        if others := sorted(set(differing) - {"seed", "arms"}):
            raise UsageError(
                f"{folder}: expected seeds of one plan, found seed {plan.seed} with another {', '.join(others)}. "
                "Run it with the numbers of the others, or into another --out."
            )
    seeds = [plan.seed for plan in plans]
    numbers = {name: value for name, value in first.items() if name not in ("seed", "file", "arms")}
    return {"line": "plan", "seeds": seeds, **numbers, "file": Path(plans[0].file).name, "arms": list(arms)}


def write_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines with bzip2; the same lines are the same bytes."""
    with bz2.open(file, "wb") as packed:
        for line in lines:
            packed.write((json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n").encode())


def read_answers(file: Path) -> list[Line]:
    """The lines of a file that `gather` wrote.

    Raises:
        UsageError: it is not there, or is not one.
    """
    if not file.is_file():
        raise UsageError(
            f"expected raw answers at {file}, found no file. `python -m studies run` writes it into its folder."
        )
    try:
        with bz2.open(file, "rt", encoding="utf-8") as packed:
            return [json.loads(line) for line in packed]
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"{file}: expected JSON Lines with bzip2, found: {error}. Gather the answers again."
        ) from error


def _seed_lines(plan: StudyPlan, seed: Path) -> Iterator[Line]:
    summary = seed / SUMMARY
    chosen = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
    yield {"line": "seed", "seed": plan.seed, **chosen}
    for arm in (BEFORE, *plan.arms):
        done = seed / f"arm-{arm}.json"
        if not done.exists():
            continue
        yield {"line": "arm", "seed": plan.seed, **json.loads(done.read_text(encoding="utf-8"))}
        for line in (seed / f"answers-{arm}.jsonl").read_text(encoding="utf-8").splitlines():
            yield {"line": "answer", "seed": plan.seed, **json.loads(line)}


def _call_lines(plan: StudyPlan, seed: Path) -> Iterator[Line]:
    tool = get_tool(plan.tool)
    answers = {str(item.document.document_id): item.answer for item in plan.training}
    for number, record in enumerate(stored_records(seed)):
        text, answer = record["text"], answers[record["document_id"]]
        for call in releasable(record):
            yield {"seed": plan.seed, "text": number, **call_fields(text, call, answer, tool)}


def call_fields(text: str, call: ScoredCall, answer: str, tool: Tool) -> Line:
    """What raw answers say of a call in its text."""
    log_p = {}
    for name, values in call["log_p"].items():
        log_p[name] = None if values is None else [round(value, DIGITS) for value in values]
    return {
        "place": call["position_char"],
        "call": call["call"],
        "foretells": foretells(call, text),
        "follows": result_follows(call["result"], text[call["position_char"] :]),
        "right": is_right(call, answer, tool),
        "log_p": log_p,
    }

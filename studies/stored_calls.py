"""Annotated seeds out of raw answers: whoever has the repository trains arms without annotating again.

`NAME-calls.jsonl.bz2` has each call that could be released, with its place and its log probabilities in hundredths of a
nat. The sentences follow from the seed, a result from its call, losses from the log probabilities. So an arm's rule
chooses by losses that are off by at most 0.005 nats. The file does not have how likely a call was at its place.
"""

import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.answers import Line, call_fields, read_answers
from studies.calls import CALLS, PREFIXES, Record
from studies.plan import StudyPlan
from toolformer_ops.annotation.scoring import choose_result, own_text_of
from toolformer_ops.call_syntax import parse_call
from toolformer_ops.config import Settings
from toolformer_ops.errors import UsageError
from toolformer_ops.language_model.losses import weighted_loss
from toolformer_ops.records import Document
from toolformer_ops.storage.machine.shared_files import replace_file
from toolformer_ops.tools.base import Tool, ToolOutput, run_tool
from toolformer_ops.tools.registry import get_tool
from toolformer_ops.tools.written_numbers import read_as_in

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

ARMS_WITHOUT_STORED_CALLS = ("other_result",)
"""Arms that choose by what the file does not have."""
ANNOTATION_NUMBERS = ("study", "model", "texts", "max_positions", "samples_per_position")
"""Fields of a plan that decide which texts are annotated, and how."""
CALLS_ENDING = "-calls.jsonl.bz2"
NO_OUTPUT = ToolOutput.none("not_answerable")
"""Of a call which the document cannot answer."""


def place_stored_calls(settings: Settings, file: Path, seeds: Sequence[tuple[StudyPlan, Path]]) -> None:
    """Write the calls of a file of raw answers into the folder of each seed whose calls are not there yet.

    Raises:
        UsageError: the file is not there, is of another study or annotated other texts, it lacks one of the seeds, or an arm
            chooses by what it does not have.
    """
    if not file.name.endswith(CALLS_ENDING):
        raise UsageError(
            f"{file}: expected a file of calls, NAME{CALLS_ENDING}, found another name. Name that file."
        )
    calls_of_seed: dict[int, list[Line]] = defaultdict(list)
    for call in read_answers(file):
        calls_of_seed[call["seed"]].append(call)
    for plan, folder in seeds:
        _refuse_unlike(file, plan, calls_of_seed)
        if (folder / CALLS).exists():
            continue
        records = stored_records(settings, plan, calls_of_seed[plan.seed])
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / CALLS, "".join(json.dumps(record) + "\n" for record in records))
        logger.info("seed %d: %d calls of %s", plan.seed, len(calls_of_seed[plan.seed]), file)


def stored_records(settings: Settings, plan: StudyPlan, calls: Iterable[Line]) -> list[Record]:
    """The texts of a seed with the calls of its lines, as `calls.inform` returns them.

    Raises:
        UsageError: a call has no result, or its text is not the one in which it was annotated.
    """
    tool = get_tool(plan.tool)
    documents = [item.document for item in plan.training]
    records: list[Record] = [
        {"document_id": str(document.document_id), "text": document.text, "calls": []}
        for document in documents
    ]
    lines = list(calls)
    results = _results(settings, tool, [(line, documents[line["text"]]) for line in lines])
    for line, result in zip(lines, results, strict=True):
        record, answer = records[line["text"]], plan.training[line["text"]].answer
        call = stored_call(record["document_id"], line, result)
        if line != {
            "seed": plan.seed,
            "text": line["text"],
            **call_fields(record["text"], call, answer, tool),
        }:
            raise UsageError(
                f"seed {plan.seed}: expected {line['call']} in text {line['text']} as it was annotated, found another text. "
                "Give the file from which the texts came, or annotate without --annotated."
            )
        record["calls"].append(call)
    return records


def _results(settings: Settings, tool: Tool, calls: Sequence[tuple[Line, Document]]) -> list[str]:
    """The result of each call in its text.

    Raises:
        UsageError: a call has none, so that it is not a call of this text or the tool has changed since.
    """
    # 1. Each input once.
    inputs: list[str | None] = []
    for line, document in calls:
        effective_input = tool.effective_input(parse_call(line["call"]).input, document)
        # The stored sums were answered by a version that read each point as a decimal sign.
        if tool.spec.name == "Calculator" and effective_input is not None:
            effective_input = read_as_in("0.5", effective_input)
        inputs.append(effective_input)
    distinct = [item for item in dict.fromkeys(inputs) if item is not None]
    runner = tool.open(settings, _no_model)
    outputs = run_tool(runner, distinct, settings.tool_time_limit_seconds) if distinct else []
    output_of_input = dict(zip(distinct, outputs, strict=True))
    # 2. What a call takes of it.
    results: list[str] = []
    for effective_input, (line, document) in zip(inputs, calls, strict=True):
        output = NO_OUTPUT if effective_input is None else output_of_input[effective_input]
        chosen = choose_result(output.results, output.reason, own_text_of(tool, document))
        if chosen.result is None:
            raise UsageError(
                f"seed {line['seed']}, text {line['text']}: expected the result of {line['call']}, found none "
                f"({chosen.reason}). Annotate the seed with this version of the tool, without --annotated."
            )
        results.append(chosen.result)
    return results


def stored_call(document_id: str, line: Line, result: str) -> dict[str, Any]:
    """A call as `calls.inform` has it, of what is stored."""
    terms = {name: weighted_loss(line["log_p"][name]) for name in PREFIXES}
    reduction = min(terms["without_call"], terms["without_result"]) - terms["with_result"]
    return {
        "document_id": document_id,
        "position_char": line["place"],
        "position_probability": math.nan,
        "call": line["call"],
        "result": result,
        "input_only_after": False,
        **{f"loss_{name}": loss for name, loss in terms.items()},
        "loss_reduction": reduction,
        "log_p": line["log_p"],
    }


def _refuse_unlike(file: Path, plan: StudyPlan, seeds: Iterable[int]) -> None:
    """Refuse a file that lacks the plan's seed or was made by another plan.

    Raises:
        UsageError: it is one.
    """
    answers = file.with_name(file.name.removesuffix(CALLS_ENDING) + ".jsonl.bz2")
    stored = next(line for line in read_answers(answers) if line["line"] == "plan")
    wanted = {name: value for name, value in asdict(plan).items() if name in ANNOTATION_NUMBERS}
    differing = [
        f"{name} {stored[name]!r} and not {value!r}"
        for name, value in wanted.items()
        if stored[name] != value
    ]
    if differing:
        raise UsageError(
            f"{file}: expected calls of this plan, found those of one with {', '.join(differing)}."
        )
    if plan.seed not in seeds:
        raise UsageError(
            f"{file}: expected calls of seed {plan.seed}, found none. Annotate it without --annotated."
        )
    if lacking := set(plan.arms) & set(ARMS_WITHOUT_STORED_CALLS):
        raise UsageError(
            f"{file}: expected arms that choose by stored losses, found {', '.join(sorted(lacking))}. "
            "Leave them out, or annotate without --annotated."
        )


def _no_model() -> "LanguageModel":
    raise UsageError(
        "expected a tool that asks no language model, found one that does. Annotate without --annotated."
    )

"""Ask a model the questions of a data set, in one of the paper's variants, and judge what it writes (sections 4.2 and 5).

Variants are decoding: M, M finetuned without calls and Toolformer (disabled) are asked with calls disabled (k = 0), Toolformer with
its k, and one call an input at most. What is judged is the continuation without its calls. Questions whose prompts begin alike are
asked one after another, so that their beginning is computed once; what is written for one does not depend on the others.

A tool that is down would make its model look worse than it is, so there is no score then: `ToolError` names suite and tool. A
tool is down where it cannot be opened, or where all of its calls (at least `FAILED_CALLS`) ended in an error or a time-out.
A prompt that is longer than the model's window is not asked, and is wrong.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from toolformer_ops.decoding.records import DecodingSettings, MadeCall, Prompt, WrittenText
from toolformer_ops.errors import ToolError, ToolformerError
from toolformer_ops.evaluation.records import VARIANT_NAMES, EvaluatedInput, Question, SuiteScore, Variant
from toolformer_ops.evaluation.statistics import wilson_interval
from toolformer_ops.evaluation.suites.base import LoadedDataSet, Suite
from toolformer_ops.tools.base import TIMED_OUT, TOOL_ERROR

if TYPE_CHECKING:
    from toolformer_ops.language_model import LanguageModel

logger = logging.getLogger(__name__)

QUESTIONS_AT_ONCE = 512
"""Questions handed to the model together; after each such batch a line of progress is written."""
FAILED_CALLS = 3
"""From so many failed calls of a tool on, none of which succeeded, the tool counts as down."""
NOT_AVAILABLE = "tool_not_available"
SHARE_CORRECT = "share_correct"


class WritesWithTools(Protocol):
    """What an evaluation needs of `decoding.model.WritingModel`."""

    identity: str
    language_model: "LanguageModel"

    @property
    def max_positions(self) -> int: ...  # noqa: D102
    def write(self, prompts: Sequence[Prompt], decoding: DecodingSettings) -> list[WrittenText]: ...  # noqa: D102
    def require_tools(self, barred: Sequence[str] = ()) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class Candidate:
    """A model in a variant."""

    model: WritesWithTools
    name: str
    """What the scores call it: its identity, or the id of a finetuned model."""
    variant: Variant
    call_start_rank: int
    """k; 0 for every variant but with_tools."""

    @property
    def title(self) -> str:
        """As a table or a log names it."""
        return VARIANT_NAMES[self.variant] + (f", k = {self.call_start_rank}" if self.variant == "with_tools" else "")


@dataclass(frozen=True)
class Evaluation:
    """A candidate's result on one data set."""

    score: SuiteScore
    inputs: tuple[EvaluatedInput, ...]
    """In the order of the data set."""


def decoding_settings(suite: Suite, call_start_rank: int) -> DecodingSettings:
    """How a suite is written: as much text with calls as without, and one call at most."""
    return DecodingSettings(
        max_new_tokens=suite.answer_tokens,
        call_start_rank=call_start_rank,
        calls_per_input=1,
        max_call_tokens=suite.call_tokens,
        barred_tools=suite.barred_tools,
    )


def require_tools(candidate: Candidate, suite: Suite) -> None:
    """Open every tool that the suite allows, where the candidate may call tools.

    Raises:
        ToolError: one cannot be opened; names the suite.
    """
    if candidate.call_start_rank == 0:
        return
    try:
        candidate.model.require_tools(suite.barred_tools)
    except ToolformerError as error:
        raise ToolError(f"suite {suite.name} is not evaluated, since a tool is down: {error}") from error


def evaluate_data_set(candidate: Candidate, suite: Suite, loaded: LoadedDataSet) -> Evaluation:
    """Ask all questions of a data set.

    Raises:
        ToolError: a tool is down; names the suite.
    """
    require_tools(candidate, suite)
    started = time.monotonic()
    written: dict[int, WrittenText | None] = {}
    right = 0
    for questions in _batches(loaded.questions):
        for question, text in _write(candidate, suite, questions):
            written[question.number] = text
            right += text is not None and suite.metric.judge(text.without_calls, question.answers)[1]
        logger.info(
            "%s %s, %s: %d of %d asked, %.1f %% right, %.0f s",
            suite.name, loaded.data_set.name, candidate.title, len(written), len(loaded.questions),
            100 * right / len(written), time.monotonic() - started,
        )  # fmt: skip
    inputs = tuple(_judged(candidate, suite, question, written[question.number]) for question in loaded.questions)
    _refuse_down_tools(suite, inputs)
    return Evaluation(_score(candidate, suite, loaded, inputs, time.monotonic() - started), inputs)


def _batches(questions: Sequence[Question]) -> Iterator[list[Question]]:
    """Questions with alike prompts next to each other."""
    alike = sorted(questions, key=lambda question: (question.shared_head, question.prompt, question.number))
    for first in range(0, len(alike), QUESTIONS_AT_ONCE):
        yield alike[first : first + QUESTIONS_AT_ONCE]


def _write(
    candidate: Candidate, suite: Suite, questions: Sequence[Question]
) -> Iterator[tuple[Question, WrittenText | None]]:
    """Each question with its continuation; None where its prompt is too long."""
    fitting = [question for question in questions if _fits(candidate.model, question.prompt)]
    if len(fitting) < len(questions):
        logger.warning(
            "%s: %d prompts are longer than the model's window of %d tokens and count as wrong",
            suite.name, len(questions) - len(fitting), candidate.model.max_positions,
        )  # fmt: skip
    prompts = [Prompt(question.prompt, question.date, question.shared_head) for question in fitting]
    texts = candidate.model.write(prompts, decoding_settings(suite, candidate.call_start_rank))
    found = {question.number: text for question, text in zip(fitting, texts, strict=True)}
    for question in questions:
        yield question, found.get(question.number)


def _fits(model: WritesWithTools, prompt: str) -> bool:
    room = model.max_positions - 2  # a start token, and one token to write
    return len(prompt.encode()) <= room or len(model.language_model.tokenize(prompt)) <= room


def _judged(candidate: Candidate, suite: Suite, question: Question, text: WrittenText | None) -> EvaluatedInput:
    predicted, correct = suite.metric.judge(text.without_calls, question.answers) if text else ("", False)
    return EvaluatedInput(
        suite.name,
        question.subset,
        candidate.name,
        candidate.variant,
        candidate.call_start_rank,
        question.number,
        question.prompt,
        question.answers,
        text.text if text else "",
        predicted,
        correct,
        text.calls if text else (),
        question.date,
    )


def _refuse_down_tools(suite: Suite, inputs: Sequence[EvaluatedInput]) -> None:
    calls: dict[str, list[MadeCall]] = defaultdict(list)
    for one in inputs:
        for call in one.calls:
            calls[call.tool].append(call)
    for tool, made in calls.items():
        failed = sum(call.reason in {TOOL_ERROR, TIMED_OUT} for call in made)
        if any(call.reason == NOT_AVAILABLE for call in made) or (failed == len(made) and failed >= FAILED_CALLS):
            reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(call.reason for call in made).items())
            raise ToolError(
                f"suite {suite.name} is not scored, since {tool} is down: of {len(made)} calls {reasons}. The log has the "
                f"reasons; `toolformer-ops call {tool} ...` tries it alone."
            )


def _score(
    candidate: Candidate, suite: Suite, loaded: LoadedDataSet, inputs: Sequence[EvaluatedInput], seconds: float
) -> SuiteScore:
    right = sum(one.correct for one in inputs)
    interval = wilson_interval(right, len(inputs))
    with_call = [one.correct for one in inputs if one.has_call]
    without_call = [one.correct for one in inputs if not one.has_call]
    by_tool = Counter(tool for one in inputs for tool in {call.tool for call in one.calls if call.result is not None})
    return SuiteScore(
        suite.name,
        loaded.data_set.name,
        candidate.name,
        candidate.variant,
        candidate.call_start_rank,
        len(inputs),
        SHARE_CORRECT,
        right / len(inputs),
        interval.low,
        interval.high,
        {tool: count / len(inputs) for tool, count in sorted(by_tool.items())},
        len(with_call),
        _share(with_call),
        _share(without_call),
        round(seconds, 3),
        loaded.sha256,
    )


def _share(outcomes: Sequence[bool]) -> float | None:
    return sum(outcomes) / len(outcomes) if outcomes else None
